//! The Secrets of one namespace of the hub: where the credentials of clusters
//! are, and which of them a ref means.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use mw_core::cilium::object::Refusal;
use mw_core::seen::Seen;
use mw_core::text::printable;
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;

use crate::cilium::engine::{Engine, Event};
use crate::fleet::Source;
use crate::fleet::follow::{Manner, Outlet, Scope, Version, follow};
use crate::kubeconfig::{Access, Allowed, inspect};
use crate::mirror::{Item, Mirror};

/// Keys that are tried, in this order.
const KEYS: [&str; 2] = ["kubeconfig", "value"];
/// Labels by which a Secret says whose it is.
const LABELS: [&str; 2] = ["networking.edge-portal.eu/cluster", "cluster.x-k8s.io/cluster-name"];

#[derive(Debug)]
pub(super) struct Vault {
    pub(super) secrets: Mirror<String, SecretSight>,
    pub(super) task: AbortHandle,
}

/// What of a Secret matters here.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretSight {
    /// The clusters it is labelled with.
    clusters: Vec<String>,
    kubeconfig: Option<(&'static str, Vec<u8>)>,
}

/// Credentials never show.
impl std::fmt::Debug for SecretSight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSight").field("clusters", &self.clusters).finish_non_exhaustive()
    }
}

/// Where a ref leads as far as Secrets say.
#[derive(Debug)]
pub(super) enum Lead<'a> {
    Unread,
    Missing(String),
    Found { source: Source, sight: &'a SecretSight },
}

fn read_secret(secret: Secret) -> (String, Item<SecretSight>) {
    let meta = secret.metadata;
    let labels = meta.labels.unwrap_or_default();
    let mut data = secret.data.unwrap_or_default();
    let kubeconfig = KEYS.into_iter().find_map(|key| Some((key, data.remove(key)?.0)));
    let clusters = LABELS.iter().filter_map(|key| labels.get(*key).cloned()).collect();
    let of = SecretSight { clusters, kubeconfig };
    let (uid, version) = (meta.uid.unwrap_or_default(), Version::of(meta.resource_version.as_deref()));
    (meta.name.unwrap_or_default(), Item { uid, version, of })
}

impl Engine {
    /// Follows the Secrets of the namespaces that have objects, and of no others.
    pub(super) fn follow_secrets(&mut self) {
        let wanted: BTreeSet<String> = self.records.values().map(|record| record.id().namespace.clone()).collect();
        self.vaults.retain(|namespace, vault| {
            let keep = wanted.contains(namespace);
            if !keep {
                vault.task.abort();
            }
            keep
        });
        for namespace in wanted {
            if self.vaults.contains_key(&namespace) {
                continue;
            }
            let api: Api<Secret> = Api::namespaced(self.environment.hub.clone(), &namespace);
            let manner = Manner { scope: Scope::default(), backoff: self.backoff(), relist: self.hub_relist.listen() };
            let of = namespace.clone();
            let wrap = move |seen| Event::Secrets { namespace: of.clone(), seen };
            let outlet = Outlet { events: self.sender.clone(), wrap };
            let task = self.tasks.spawn(follow(api, manner, read_secret, outlet));
            self.vaults.insert(namespace, Vault { secrets: Mirror::default(), task });
        }
    }

    pub(super) fn lead(&self, namespace: &str, name: &str) -> Lead<'_> {
        let known = match self.vaults.get(namespace).map(|vault| vault.secrets.known()) {
            None | Some(Seen::Unknown(_)) => return Lead::Unread,
            Some(Seen::Known(known)) => known,
        };
        let by_name = [name.to_owned(), format!("{name}-kubeconfig")].into_iter().find_map(|name| known.get_key_value(&name));
        let mut labelled = known.iter().filter(|(_, item)| item.of.clusters.iter().any(|cluster| cluster == name));
        let shown = printable(name, 253);
        let found = match (by_name, labelled.next(), labelled.next()) {
            (Some(found), _, _) | (None, Some(found), None) => found,
            (None, None, _) => {
                return Lead::Missing(format!(
                    "there is no Secret {shown} or {shown}-kubeconfig in namespace {namespace}, and none is labelled with it"
                ));
            }
            (None, Some((one, _)), Some((other, _))) => {
                return Lead::Missing(format!("Secrets {one} and {other} in namespace {namespace} are both labelled with {shown}"));
            }
        };
        let (secret, item) = found;
        let source = Source::Secret { namespace: namespace.to_owned(), name: secret.clone(), key: None };
        Lead::Found { source, sight: &item.of }
    }
}

impl SecretSight {
    /// The kubeconfig that passed, with a hash to know it again; or why there
    /// is none. Never tells what is in the Secret.
    pub(super) fn access(&self, source: &Source, allowed: Allowed) -> Result<(Access, [u8; 32]), Refusal> {
        let Some((key, bytes)) = &self.kubeconfig else {
            return Err(Refusal::Kubeconfig(format!("Secret {source} has none of the keys {}", KEYS.join(", "))));
        };
        match inspect(bytes, allowed) {
            Ok(access) => Ok((access, Sha256::digest(bytes).into())),
            Err(refusal) => Err(Refusal::Kubeconfig(format!("the kubeconfig in Secret {source}, key {key}, {refusal}"))),
        }
    }
}
