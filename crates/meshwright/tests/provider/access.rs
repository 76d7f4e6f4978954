//! Accounts of the provider.

use crate::rights::Account;

pub(crate) const HUB: Account = Account {
    place: "Hub",
    namespace: "meshwright",
    name: "meshwright-provider",
    roles: include_str!("../../../../config/rbac/cilium-hub.yaml"),
};
pub(crate) const TARGET: Account = Account {
    place: "Target",
    namespace: "kube-system",
    name: "meshwright-target",
    roles: concat!(
        include_str!("../../../../config/rbac/cilium-target.yaml"),
        "---\n",
        include_str!("../../../../config/rbac/cilium-target-ca.yaml"),
        "---\n",
        include_str!("../../../../config/rbac/cilium-target-metrics.yaml"),
        "---\n",
        include_str!("../../../../config/cilium-connection-secrets.yaml"),
    ),
};
/// With kcp, the hub is the management plane.
pub(crate) const MANAGEMENT: Account = Account {
    place: "Management",
    namespace: "default",
    name: "meshwright-management",
    roles: include_str!("../../../../config/rbac/cilium-management.yaml"),
};
pub(crate) const ACCOUNTS: [Account; 3] = [HUB, MANAGEMENT, TARGET];
