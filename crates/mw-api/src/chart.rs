//! The rules of the Helm chart's roles: those of config/rbac/, under names that
//! are the release's.

use crate::cilium;
use crate::crd::{YamlError, to_yaml};
use crate::rbac;

/// By their path from the repository's root.
pub fn files() -> Result<[(&'static str, String); 4], YamlError> {
    let operator: Vec<_> = rbac::member_rules().into_iter().chain(rbac::hub_rules()).collect();
    Ok([
        ("charts/meshwright/files/rules/operator-cluster.yaml", to_yaml(&operator)?),
        ("charts/meshwright/files/rules/operator-namespace.yaml", to_yaml(&rbac::namespace_rules())?),
        ("charts/meshwright/files/rules/provider-cluster.yaml", to_yaml(&cilium::rbac::hub_rules())?),
        ("charts/meshwright/files/rules/provider-namespace.yaml", to_yaml(&cilium::rbac::lease_rules())?),
    ])
}
