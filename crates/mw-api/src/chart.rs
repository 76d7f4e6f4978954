//! RBAC rules for the Helm chart, the same as in config/rbac/. The chart's templates
//! put them into roles named after the release.

use crate::cilium;
use crate::crd::{YamlError, to_yaml};
use crate::rbac;

/// Returns the rule files of the chart, as path from the repository root and content.
pub fn files() -> Result<[(&'static str, String); 5], YamlError> {
    let operator: Vec<_> = rbac::member_rules()
        .into_iter()
        .chain(rbac::hub_rules())
        .collect();
    Ok([
        (
            "charts/meshwright/files/rules/operator-cluster.yaml",
            to_yaml(&operator)?,
        ),
        (
            "charts/meshwright/files/rules/operator-namespace.yaml",
            to_yaml(&rbac::namespace_rules())?,
        ),
        (
            "charts/meshwright/files/rules/secure-metrics.yaml",
            to_yaml(&rbac::secure_metrics_rules())?,
        ),
        (
            "charts/meshwright/files/rules/provider-cluster.yaml",
            to_yaml(&cilium::rbac::hub_rules())?,
        ),
        (
            "charts/meshwright/files/rules/provider-namespace.yaml",
            to_yaml(&cilium::rbac::lease_rules())?,
        ),
    ])
}
