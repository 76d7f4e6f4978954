//! Accounts of the operator and the provider, as the plain manifests create them, and accounts of
//! members.

use mw_sim::kilo::NAMESPACE;
use mw_testbed::Cluster;

use crate::rights::Account;

pub(crate) const HUB_ACCOUNT: &str = "meshwright-operator";
pub(crate) const OPERATOR: Account = Account {
    place: "Operator",
    namespace: NAMESPACE,
    name: HUB_ACCOUNT,
    roles: include_str!("../../../../config/install/operator.yaml"),
};
const REMOTE: Account = Account {
    place: "Remote",
    namespace: "kube-system",
    name: "clustermesh-reader",
    roles: include_str!("../../../../config/rbac/remote.yaml"),
};
/// The provider's account on the hub.
pub(crate) const HUB: Account = Account {
    place: "Provider",
    namespace: "meshwright",
    name: "meshwright-provider",
    roles: include_str!("../../../../config/install/provider.yaml"),
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
pub(crate) const MANAGEMENT: Account = Account {
    place: "Management",
    namespace: "default",
    name: "meshwright-management",
    roles: include_str!("../../../../config/rbac/cilium-management.yaml"),
};
pub(crate) const ACCOUNTS: [Account; 5] = [OPERATOR, REMOTE, HUB, MANAGEMENT, TARGET];

/// Creates the hub account from the plain manifest and returns its token.
pub(crate) async fn hub_account(hub: &Cluster, account: &str) -> String {
    OPERATOR.make(hub).await;
    hub.request_token(NAMESPACE, account, 3600).await.unwrap()
}

pub(crate) async fn remote_account(remote: &Cluster) -> String {
    REMOTE.make(remote).await;
    REMOTE.kept_token(remote).await
}
