//! Sections of docs/install.md.

use mw_testbed::Cluster;
use mw_testbed::binaries::kubectl;

use crate::page::{Shell, typed};
use crate::render::Helm;

pub(crate) const PAGE: &str = include_str!("../../../../docs/install.md");

/// Text of a section.
pub(crate) fn under(heading: &str) -> &'static str {
    let [script] = typed(PAGE, heading)[..] else {
        panic!("more than one block under {heading}")
    };
    script
}

pub(crate) fn administrator(cluster: &Cluster) -> Shell {
    let programs = [
        ("helm", Helm::locate().unwrap().program().to_owned()),
        ("kubectl", kubectl().unwrap()),
    ];
    Shell::new(&[("here", cluster)], &programs)
}
