//! The Secrets of the hub that hold the credentials of clusters, and which of
//! them a ref means. No other Secret is read.

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
use crate::cilium::record::Record;
use crate::fleet::Source;
use crate::fleet::follow::{Outlet, Version, follow};
use crate::fleet::list::Scope;
use crate::kubeconfig::{Access, Allowed, inspect};
use crate::mirror::{Item, Mirror};

/// Keys that are tried, in this order.
const KEYS: [&str; 2] = ["kubeconfig", "value"];
/// Larger values are something else, and not kept.
const LARGEST_KUBECONFIG: usize = 256 << 10;
/// Labels by which a Secret says whose it is.
const LABELS: [&str; 2] = ["networking.edge-portal.eu/cluster", "cluster.x-k8s.io/cluster-name"];

const LONGEST_NAME: usize = 253;

/// What is looked for in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Search {
    pub(super) namespace: String,
    by: By,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Name(String),
    /// All Secrets that have this label.
    Label(&'static str),
}

/// What one search found.
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
    /// The Cluster does not name its owner.
    OwnerMissing(String),
    /// The Cluster names other owners.
    Revoked(String),
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

/// Whether a Secret can have this name. A ref is any text that a tenant wrote,
/// and a selector would obey some.
fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(fits)
}

/// The names of Secrets that a ref of the hub may mean, in the order in which
/// they count.
fn names_of(name: &str) -> impl Iterator<Item = String> {
    [name.to_owned(), format!("{name}-kubeconfig")].into_iter().filter(|name| is_name(name))
}

impl Search {
    pub(super) fn named(namespace: &str, name: &str) -> Search {
        Search { namespace: namespace.to_owned(), by: By::Name(name.to_owned()) }
    }

    fn labelled(namespace: &str, label: &'static str) -> Search {
        Search { namespace: namespace.to_owned(), by: By::Label(label) }
    }

    fn scope(&self) -> Scope {
        match &self.by {
            By::Name(name) => Scope::named(name),
            By::Label(label) => Scope::labelled(label),
        }
    }
}

impl Engine {
    /// Follows the Secrets that refs may lead to, and no others.
    pub(super) fn follow_secrets(&mut self) {
        let wanted: BTreeSet<Search> = self.records.values().flat_map(|record| self.searches(record)).collect();
        self.vaults.retain(|search, vault| {
            let keep = wanted.contains(search);
            if !keep {
                vault.task.abort();
            }
            keep
        });
        for search in wanted {
            if self.vaults.contains_key(&search) {
                continue;
            }
            let api: Api<Secret> = Api::namespaced(self.environment.hub.clone(), &search.namespace);
            let manner = self.hub_manner(search.scope());
            let of = search.clone();
            let wrap = move |seen| Event::Secrets { search: of.clone(), seen };
            let outlet = Outlet { events: self.sender.clone(), wrap };
            let task = self.tasks.spawn(follow(api, manner, read_secret, outlet));
            self.vaults.insert(search, Vault { secrets: Mirror::default(), task });
        }
    }

    /// Where the credentials of an object's clusters are looked for.
    pub(super) fn searches(&self, record: &Record) -> BTreeSet<Search> {
        let id = record.id();
        let refs = self.refs(record);
        match &self.kcp {
            Some(kcp) => {
                let secrets = refs.iter().filter_map(|name| self.managed_secret(name));
                secrets.filter(|(name, _)| is_name(name)).map(|(name, _)| Search::named(&kcp.namespace, &name)).collect()
            }
            None => {
                let named = refs.iter().flat_map(|name| names_of(name)).map(|name| Search::named(&id.namespace, &name));
                named.chain(LABELS.map(|label| Search::labelled(&id.namespace, label))).collect()
            }
        }
    }

    /// Where a ref of an object leads.
    pub(super) fn lead(&self, id: &ObjectId, name: &str) -> Lead<'_> {
        match self.kcp {
            Some(_) => self.lead_through_management(Asked { workspace: &id.workspace, namespace: &id.namespace, name }),
            None => self.lead_on_hub(&id.namespace, name),
        }
    }

    fn found(&self, search: &Search) -> Option<&BTreeMap<String, Item<SecretSight>>> {
        match self.vaults.get(search)?.secrets.last_known() {
            Seen::Known(secrets) => Some(secrets),
            Seen::Unknown(_) => None,
        }
    }

    /// A Secret by its name.
    pub(super) fn secret(&self, namespace: &str, name: &str, key: Option<&str>) -> Lead<'_> {
        if !is_name(name) {
            return secret_among(&Secrets::new(), namespace, name, key);
        }
        let found = self.found(&Search::named(namespace, name));
        found.map_or(Lead::Unread, |found| secret_among(&shown(found).collect(), namespace, name, key))
    }

    fn lead_on_hub(&self, namespace: &str, name: &str) -> Lead<'_> {
        let named = names_of(name).map(|name| Search::named(namespace, &name));
        let searches = named.chain(LABELS.map(|label| Search::labelled(namespace, label)));
        let known: Option<Vec<_>> = searches.map(|search| self.found(&search)).collect();
        known.map_or(Lead::Unread, |known| lead_among(&known.into_iter().flat_map(shown).collect(), namespace, name))
    }
}

/// Secrets by name.
pub(super) type Secrets<'a> = BTreeMap<&'a str, &'a SecretSight>;

pub(super) fn shown(found: &BTreeMap<String, Item<SecretSight>>) -> impl Iterator<Item = (&str, &SecretSight)> {
    found.iter().map(|(name, item)| (name.as_str(), &item.of))
}

fn secret_among<'a>(known: &Secrets<'a>, namespace: &str, name: &str, key: Option<&str>) -> Lead<'a> {
    let Some(sight) = known.get(name).copied() else {
        return Lead::Missing(format!("Secret {} not found in namespace {namespace}", printable(name, 253)));
    };
    let source = Source::Secret { namespace: namespace.to_owned(), name: name.to_owned(), key: key.map(str::to_owned) };
    Lead::Found { source, sight }
}

/// A Secret with the name of the ref or labelled with it.
pub(super) fn lead_among<'a>(known: &Secrets<'a>, namespace: &str, name: &str) -> Lead<'a> {
    let by_name = names_of(name).find(|name| known.contains_key(name.as_str()));
    let mut labelled = known.iter().filter(|(_, sight)| sight.clusters.iter().any(|cluster| cluster == name)).map(|(name, _)| *name);
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
    pub(super) fn access(&self, source: &Source, allowed: &Allowed) -> Result<(Access, [u8; 32]), Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_that_no_secret_can_be_called_is_not_asked_for() {
        assert_eq!(names_of("east").collect::<Vec<_>>(), ["east", "east-kubeconfig"]);
        for name in ["", "East", "a,metadata.namespace=b", "a=b", "a b", "a!", &"a".repeat(254)] {
            assert!(names_of(name).all(|name| is_name(&name)) && names_of(name).count() <= 1, "{name}");
        }
        assert_eq!(names_of("a,metadata.name=b").count(), 0);
    }
}
