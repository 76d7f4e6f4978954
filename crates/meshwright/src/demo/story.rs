//! What happens to the fleet, one thing after the other, and how long each took
//! from its cause to its effect.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep, timeout};

use crate::demo::fleet::Fleet;

/// A step, and what it came to once it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) cause: String,
    pub(crate) effect: Option<String>,
}

impl Line {
    pub(crate) fn of(cause: String, effect: String) -> Line {
        Line { cause, effect: Some(effect) }
    }
}

/// Why the story was not told to its end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The effect did not come.
    Stuck(String),
    /// Nobody listens any more.
    Unread,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Ending {
    fn from(wrong: anyhow::Error) -> Ending {
        Ending::Failed(wrong)
    }
}

/// How long people get to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    before: Duration,
    after: Duration,
}

impl Pace {
    pub(crate) fn human() -> Pace {
        Pace { before: Duration::from_millis(800), after: Duration::from_millis(2_200) }
    }

    /// A cluster must be dead for a while to be missed.
    pub(crate) fn brisk() -> Pace {
        Pace { before: Duration::ZERO, after: Duration::from_millis(300) }
    }
}

/// Nothing is waited for longer than this and 3 ms for each Peer, so that a busy
/// machine gets there as well.
const PATIENCE: Duration = Duration::from_secs(60);
/// No write for so long: what happened is over.
const SETTLED: Duration = Duration::from_millis(500);

pub(crate) struct Story<'a> {
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) pace: Pace,
    /// False when nobody listens.
    pub(crate) tell: &'a dyn Fn(&Line) -> Result<bool>,
}

impl std::fmt::Debug for Story<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Story").field("pace", &self.pace).finish_non_exhaustive()
    }
}

impl Story<'_> {
    pub(crate) async fn play(&mut self) -> Result<(), Ending> {
        self.scene(self.fleet.one_mesh(), converge).await?;
        self.node_joins(&[]).await?;
        self.token_is_replaced().await?;
        self.node_moves().await?;
        self.nodes_are_renumbered().await?;
        let lost = self.fleet.last();
        self.cluster_dies(&lost).await?;
        let missed = match self.fleet.members_but(std::slice::from_ref(&lost)).is_empty() {
            true => None,
            false => Some(self.node_joins(std::slice::from_ref(&lost)).await?),
        };
        self.cluster_returns(&lost, missed.as_deref()).await
    }

    /// The first step alone; what it came to.
    pub(crate) async fn converges(&mut self) -> Result<String, Ending> {
        converge(self.fleet).await
    }

    /// A node that comes to the hub is in the Peers of all members but those
    /// that are absent. Its name.
    async fn node_joins(&mut self, absent: &[String]) -> Result<String, Ending> {
        let (newcomer, others) = (self.fleet.next_node(), if absent.is_empty() { "" } else { " other" });
        self.scene(format!("node {newcomer} joins"), async |fleet: &mut Fleet| {
            let (start, before) = (Instant::now(), fleet.counts().peer_writes);
            let node = fleet.add_node()?;
            let mut left = fleet.members_but(absent);
            let took = until(fleet, start, "the new node's Peers", |fleet| {
                left.retain(|member| fleet.peer(member, &node).is_none());
                left.is_empty()
            });
            let took = took.await?;
            Ok(format!("in all{others} Peers after {took}, by {}", writes(fleet.counts().peer_writes - before)))
        })
        .await?;
        Ok(newcomer)
    }

    async fn token_is_replaced(&mut self) -> Result<(), Ending> {
        let member = self.fleet.second();
        self.scene(format!("{member} gets a new token"), async |fleet: &mut Fleet| {
            let start = Instant::now();
            let (former, token) = fleet.renew_token(&member)?;
            let took = until(fleet, start, "the new token to be used", |fleet| fleet.uses(&token)).await?;
            former.iter().try_for_each(|former| fleet.revoke(&member, former))?;
            Ok(format!("in use after {took}, the old one is revoked"))
        })
        .await
    }

    /// Everybody is written to, also with the new token.
    async fn node_moves(&mut self) -> Result<(), Ending> {
        let node = self.fleet.first_node();
        self.scene(format!("{node} gets a new address"), async |fleet: &mut Fleet| {
            let (start, before) = (Instant::now(), fleet.counts().unauthorized);
            fleet.move_node(&node)?;
            let mut left = fleet.members_but(&[]);
            let took = until(fleet, start, "the new address in all Peers", |fleet| {
                left.retain(|member| !fleet.has_moved(member, &node));
                left.is_empty()
            });
            let took = took.await?;
            Ok(match fleet.counts().unauthorized - before {
                0 => format!("in all Peers after {took}, none refused"),
                refused => format!("in all Peers after {took}, {refused} refused"),
            })
        })
        .await
    }

    /// Kilo numbers two nodes anew, and one of them publishes its address before
    /// the other does: for a moment both have the same.
    async fn nodes_are_renumbered(&mut self) -> Result<(), Ending> {
        let Some([(first, one), (second, other)]) = self.fleet.two_nodes() else { return Ok(()) };
        self.scene("Kilo renumbers two nodes".to_owned(), async |fleet: &mut Fleet| {
            let (start, before) = (Instant::now(), fleet.counts().peers_deleted);
            fleet.publish_address(&first, &other)?;
            let mut left = fleet.members_but(&[]);
            until(fleet, start, "the shared address to be noticed", |fleet| {
                left.retain(|member| fleet.carries(member, &first, &one));
                left.is_empty()
            })
            .await?;
            fleet.publish_address(&second, &one)?;
            let mut left = fleet.members_but(&[]);
            let took = until(fleet, start, "the new addresses in all Peers", |fleet| {
                left.retain(|member| !fleet.carries(member, &first, &other) || !fleet.carries(member, &second, &one));
                left.is_empty()
            });
            let took = took.await?;
            Ok(match fleet.counts().peers_deleted - before {
                0 => format!("in all Peers after {took}, none was deleted"),
                deleted => format!("in all Peers after {took}, {deleted} were deleted"),
            })
        })
        .await
    }

    async fn cluster_dies(&mut self, lost: &str) -> Result<(), Ending> {
        self.scene(format!("{lost} dies"), async |fleet: &mut Fleet| {
            let (start, before) = (Instant::now(), fleet.counts().peers_deleted);
            fleet.set_alive(lost, false)?;
            let took = until(fleet, start, "the status to say so", |fleet| fleet.reachable(lost) == Some(false)).await?;
            Ok(match fleet.counts().peers_deleted - before {
                0 => format!("seen after {took}, nothing was deleted"),
                deleted => format!("seen after {took}, {deleted} Peers were deleted"),
            })
        })
        .await
    }

    async fn cluster_returns(&mut self, lost: &str, missed: Option<&str>) -> Result<(), Ending> {
        self.scene(format!("{lost} comes back"), async |fleet: &mut Fleet| {
            let start = Instant::now();
            fleet.set_alive(lost, true)?;
            let took = until(fleet, start, "the mesh to be ready again", |fleet| {
                let has_all = missed.is_none_or(|node| fleet.peer(lost, node).is_some());
                has_all && fleet.reachable(lost) == Some(true) && fleet.ready().is_ok()
            });
            let with = if missed.is_some() { ", with what it missed" } else { "" };
            Ok(format!("Ready after {}{with}", took.await?))
        })
        .await
    }

    /// Nothing happens, so nothing is done; for so long, or for ever.
    pub(crate) async fn rests(&mut self, time: Duration) -> Result<(), Ending> {
        loop {
            let before = self.fleet.counts().requests;
            sleep(SETTLED).await;
            if self.fleet.counts().requests == before {
                break;
            }
        }
        let (start, before) = (Instant::now(), self.fleet.counts());
        loop {
            let left = time.saturating_sub(start.elapsed());
            sleep(left.min(Duration::from_secs(1))).await;
            let now = self.fleet.counts();
            let writes = now.writes - before.writes;
            let reads = (now.requests - before.requests).saturating_sub(writes);
            let effect = format!("for {} s: {reads} reads, {writes} writes but the Lease's", start.elapsed().as_secs());
            let is_over = start.elapsed() >= time;
            if is_over || time == Duration::MAX {
                self.say(&Line::of("nothing happens".to_owned(), effect))?;
            }
            if is_over {
                return Ok(());
            }
        }
    }

    async fn scene(&mut self, cause: String, play: impl AsyncFnOnce(&mut Fleet) -> Result<String, Ending>) -> Result<(), Ending> {
        self.say(&Line { cause: cause.clone(), effect: None })?;
        sleep(self.pace.before).await;
        let effect = play(self.fleet).await?;
        self.say(&Line::of(cause, effect))?;
        sleep(self.pace.after).await;
        Ok(())
    }

    fn say(&self, line: &Line) -> Result<(), Ending> {
        if (self.tell)(line)? { Ok(()) } else { Err(Ending::Unread) }
    }
}

async fn converge(fleet: &mut Fleet) -> Result<String, Ending> {
    fleet.start_operator()?;
    let start = Instant::now();
    fleet.declare_mesh()?;
    let took = until(fleet, start, "the mesh to be ready", |fleet| fleet.ready().is_ok()).await?;
    Ok(format!("Ready after {took}, {} Peers written", fleet.counts().peer_writes))
}

/// Waits for an effect. How long it took since its cause, in words.
async fn until(fleet: &Fleet, start: Instant, what: &str, mut is_there: impl FnMut(&Fleet) -> bool) -> Result<String, Ending> {
    let patience = PATIENCE + Duration::from_millis(3 * u64::try_from(fleet.peers()).unwrap_or_default());
    let wait = async {
        while !is_there(fleet) {
            fleet.changed().await;
        }
    };
    if timeout(patience, wait).await.is_ok() {
        return Ok(in_words(start.elapsed()));
    }
    let why = match (fleet.operator_ended(), fleet.ready()) {
        (true, _) => "the operator has ended: it lost its Lease".to_owned(),
        (false, Err(why)) => why,
        (false, Ok(())) => "the mesh is ready".to_owned(),
    };
    Err(Ending::Stuck(format!("waited {} for {what}, in vain: {why}", in_words(patience))))
}

fn writes(count: u64) -> String {
    if count == 1 { "1 write".to_owned() } else { format!("{count} writes") }
}

/// As exact as people want it.
fn in_words(time: Duration) -> String {
    match time.as_millis() {
        0..10 => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        10..1_000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_exact_as_people_want_them() {
        let words = |micros| in_words(Duration::from_micros(micros));
        assert_eq!([850, 7_340, 42_900, 999_900, 1_240_000].map(words), ["0.8 ms", "7.3 ms", "42 ms", "999 ms", "1.2 s"]);
    }
}
