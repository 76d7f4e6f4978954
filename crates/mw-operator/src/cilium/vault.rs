//! The Secrets of one namespace of the hub: where the credentials of clusters
//! are, and which of them a ref means.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use mw_core::cilium::object::{ObjectId, Refusal};
use mw_core::seen::Seen;
use mw_core::text::printable;
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;

use crate::cilium::engine::{Engine, Event};
use crate::cilium::management::Asked;
use crate::fleet::Source;
use crate::fleet::follow::{Manner, Outlet, Scope, Version, follow};
use crate::kubeconfig::{Access, Allowed, inspect};
use crate::mirror::{Item, Mirror};

/// Keys that are tried, in this order.
const KEYS: [&str; 2] = ["kubeconfig", "value"];
/// Larger values are something else, and not kept.
const LARGEST_KUBECONFIG: usize = 256 << 10;
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
    data: BTreeMap<String, Vec<u8>>,
}

/// Credentials never show.
impl std::fmt::Debug for SecretSight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSight").field("clusters", &self.clusters).finish_non_exhaustive()
    }
}

/// Where a ref leads.
#[derive(Debug)]
pub(super) enum Lead<'a> {
    Unread,
    /// There is no such Secret.
    Missing(String),
    /// There is no such cluster.
    NoCluster(String),
    /// It will lead somewhere.
    Pending(String),
    Refused(Refusal),
    Found {
        source: Source,
        sight: &'a SecretSight,
    },
}

pub(super) fn read_secret(secret: Secret) -> (String, Item<SecretSight>) {
    let meta = secret.metadata;
    let labels = meta.labels.unwrap_or_default();
    let data = secret.data.into_iter().flatten().filter(|(_, bytes)| bytes.0.len() <= LARGEST_KUBECONFIG);
    let data = data.map(|(key, bytes)| (key, bytes.0)).collect();
    let clusters = LABELS.iter().filter_map(|key| labels.get(*key).cloned()).collect();
    let of = SecretSight { clusters, data };
    let (uid, version) = (meta.uid.unwrap_or_default(), Version::of(meta.resource_version.as_deref()));
    (meta.name.unwrap_or_default(), Item { uid, version, of })
}

impl Engine {
    /// Follows the Secrets of the namespaces that have objects, and of no others.
    pub(super) fn follow_secrets(&mut self) {
        let wanted: BTreeSet<String> = match &self.kcp {
            Some(kcp) => [kcp.namespace.clone()].into(),
            None => self.records.values().map(|record| record.id().namespace.clone()).collect(),
        };
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

    /// Where a ref of an object leads.
    pub(super) fn lead(&self, id: &ObjectId, name: &str) -> Lead<'_> {
        match self.kcp {
            Some(_) => self.lead_through_management(Asked { workspace: &id.workspace, namespace: &id.namespace, name }),
            None => self.lead_on_hub(&id.namespace, name),
        }
    }

    fn known_secrets(&self, namespace: &str) -> Option<&BTreeMap<String, Item<SecretSight>>> {
        match self.vaults.get(namespace)?.secrets.last_known() {
            Seen::Known(secrets) => Some(secrets),
            Seen::Unknown(_) => None,
        }
    }

    /// A Secret by its name.
    pub(super) fn secret(&self, namespace: &str, name: &str, key: Option<&str>) -> Lead<'_> {
        self.known_secrets(namespace).map_or(Lead::Unread, |known| secret_among(known, namespace, name, key))
    }

    fn lead_on_hub(&self, namespace: &str, name: &str) -> Lead<'_> {
        self.known_secrets(namespace).map_or(Lead::Unread, |known| lead_among(known, namespace, name))
    }
}

type Secrets = BTreeMap<String, Item<SecretSight>>;

fn secret_among<'a>(known: &'a Secrets, namespace: &str, name: &str, key: Option<&str>) -> Lead<'a> {
    let Some(item) = known.get(name) else {
        return Lead::Missing(format!("Secret {} not found in namespace {namespace}", printable(name, 253)));
    };
    let source = Source::Secret { namespace: namespace.to_owned(), name: name.to_owned(), key: key.map(str::to_owned) };
    Lead::Found { source, sight: &item.of }
}

/// A Secret with the name of the ref or labelled with it.
pub(super) fn lead_among<'a>(known: &'a Secrets, namespace: &str, name: &str) -> Lead<'a> {
    let by_name = [name.to_owned(), format!("{name}-kubeconfig")].into_iter().find(|name| known.contains_key(name));
    let mut labelled = known.iter().filter(|(_, item)| item.of.clusters.iter().any(|cluster| cluster == name)).map(|(name, _)| name);
    let shown = printable(name, 253);
    match (by_name, labelled.next(), labelled.next()) {
        (Some(found), _, _) => secret_among(known, namespace, &found, None),
        (None, Some(found), None) => secret_among(known, namespace, found, None),
        (None, None, _) => Lead::Missing(format!(
            "there is no Secret {shown} or {shown}-kubeconfig in namespace {namespace}, and none is labelled with it"
        )),
        (None, Some(one), Some(other)) => {
            Lead::Missing(format!("Secrets {one} and {other} in namespace {namespace} are both labelled with {shown}"))
        }
    }
}

impl SecretSight {
    /// The kubeconfig that passed, with a hash to know it again; or why there
    /// is none. Never tells what is in the Secret.
    pub(super) fn access(&self, source: &Source, allowed: Allowed) -> Result<(Access, [u8; 32]), Refusal> {
        let named = match source {
            Source::Secret { key: Some(key), .. } => vec![key.as_str()],
            _ => KEYS.to_vec(),
        };
        let Some((key, bytes)) = named.iter().find_map(|key| Some((key, self.data.get(*key)?))) else {
            return Err(Refusal::Kubeconfig(format!("Secret {source} has none of the keys {}", named.join(", "))));
        };
        match inspect(bytes, allowed) {
            Ok(access) => Ok((access, Sha256::digest(bytes).into())),
            Err(refusal) => Err(Refusal::Kubeconfig(format!("the kubeconfig in Secret {source}, key {key}, {refusal}"))),
        }
    }
}
