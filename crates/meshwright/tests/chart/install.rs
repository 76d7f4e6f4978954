//! docs/install.md and who follows it.

use mw_testbed::Cluster;
use mw_testbed::binaries::kubectl;

use crate::page::{Shell, typed};
use crate::render::Helm;

pub(crate) const PAGE: &str = include_str!("../../../../docs/install.md");

/// What stands under a heading.
pub(crate) fn under(heading: &str) -> &'static str {
    let [script] = typed(PAGE, heading)[..] else { panic!("more than one block under {heading}") };
    script
}

pub(crate) fn administrator(cluster: &Cluster) -> Shell {
    let programs = [("helm", Helm::locate().unwrap().program().to_owned()), ("kubectl", kubectl().unwrap())];
    Shell::new(&[("here", cluster)], &programs)
}
