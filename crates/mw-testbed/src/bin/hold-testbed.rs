//! Starts a cluster, with the argument `cilium` also Cilium, prints its processes and
//! folder, and waits to be killed. Used by tests that nothing is left behind.

use std::io::Write;
use std::time::Duration;

use mw_testbed::Testbed;
use mw_testbed::cilium::{Ca, Cilium, CiliumSpec};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bed = Testbed::start(&["held"]).await?;
    let cilium = match std::env::args().nth(1).as_deref() {
        Some("cilium") => {
            Some(Cilium::install(&bed, "held", CiliumSpec::new("held", 1, &Ca::new()?)).await?)
        }
        _ => None,
    };
    let pids = bed
        .pids()
        .into_iter()
        .chain(cilium.iter().flat_map(Cilium::pids));
    let pids: Vec<String> = pids.map(|pid| pid.to_string()).collect();
    let mut out = std::io::stdout();
    writeln!(out, "held: {} {}", bed.folder().display(), pids.join(","))?;
    out.flush()?;
    tokio::time::sleep(Duration::from_secs(120)).await;
    Ok(())
}
