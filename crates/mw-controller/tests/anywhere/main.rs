//! One story of the operator, run on simulated API servers and on real ones.
//! `story` is the same for both.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod place;
mod story;

#[tokio::test]
async fn the_story_holds_on_simulated_servers() {
    story::tell(&place::simulated()).await;
}

#[tokio::test]
async fn the_story_holds_on_real_servers() {
    let Some((place, _bed)) = place::real().await else {
        return;
    };
    story::tell(&place).await;
}
