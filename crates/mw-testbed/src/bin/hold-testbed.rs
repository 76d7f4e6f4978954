//! Starts a cluster, says what it holds, and waits to be killed: for the test
//! that nothing is left behind then.

use std::io::Write;
use std::time::Duration;

use mw_testbed::Testbed;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bed = Testbed::start(&["held"]).await?;
    let pids: Vec<String> = bed.pids().iter().map(i32::to_string).collect();
    let mut out = std::io::stdout();
    writeln!(out, "held: {} {}", bed.folder().display(), pids.join(","))?;
    out.flush()?;
    tokio::time::sleep(Duration::from_secs(120)).await;
    Ok(())
}
