//! The bugs that `make mutants` puts in must keep pace with the code.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("every_mutant_applies", every_one_applies)]
}

fn every_one_applies() -> Result<(), libtest_mimic::Failed> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut patches: Vec<_> =
        std::fs::read_dir(here.join("tests/mutants"))?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    patches.sort();
    assert!(patches.len() >= 12, "{patches:?}");
    for patch in patches {
        let tried = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(here.join("../..")).output()?;
        assert!(tried.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&tried.stderr));
    }
    Ok(())
}
