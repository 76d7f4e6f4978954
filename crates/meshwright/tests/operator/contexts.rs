//! A kubeconfig with several contexts.

use base64ct::{Base64, Encoding};
use mw_testbed::Cluster;
use serde_json::{Value, json};

/// Admin access to each cluster under a context name; `current` is the current context.
pub(crate) fn kubeconfig(contexts: &[(&str, &Cluster)], current: &str) -> Value {
    let of = |make: &dyn Fn(&str, &Cluster) -> Value| {
        contexts
            .iter()
            .map(|(name, cluster)| make(name, cluster))
            .collect::<Vec<_>>()
    };
    let authority = |cluster: &Cluster| Base64::encode_string(cluster.ca_pem().as_bytes());
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": current,
        "clusters": of(&|name, cluster| {
            json!({ "name": name, "cluster": { "server": cluster.url(), "certificate-authority-data": authority(cluster) } })
        }),
        "users": of(&|name, cluster| json!({ "name": name, "user": { "token": cluster.admin_token() } })),
        "contexts": of(&|name, _| json!({ "name": name, "context": { "cluster": name, "user": name } })),
    })
}
