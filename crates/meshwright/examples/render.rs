//! Writes the plain manifests under `config/install/`; `make generate` calls it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the tests use the rest of what renders the chart, and may fail loudly"
)]

#[path = "../tests/chart/render.rs"]
mod render;

fn main() {
    for (path, content) in render::Helm::locate().unwrap().plain_manifests() {
        let path = render::root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}
