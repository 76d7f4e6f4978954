//! Finds the Secret on the hub with the credentials of a ref's cluster. No other
//! Secret is read.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use mw_core::cilium::object::{ObjectId, Refusal};
use mw_core::seen::Seen;
use mw_core::text::printable;
use tokio::task::AbortHandle;

use crate::cilium::engine::{Engine, Event, Input};
use crate::cilium::management::Asked;
use crate::cilium::record::Record;
use crate::fleet::follow::{EventSink, Version, follow};
use crate::fleet::list::Scope;
use crate::fleet::{PROVIDER_KEYS, Source, Unusable, kubeconfig_in};
use crate::kubeconfig::{Access, Allowed};
use crate::watch_cache::{Item, WatchCache};

/// Larger values are not kubeconfigs and are not kept.
const LARGEST_KUBECONFIG: usize = 256 << 10;
/// Labels that name the cluster of a Secret.
const LABELS: [&str; 2] = [
    "networking.edge-portal.eu/cluster",
    "cluster.x-k8s.io/cluster-name",
];

const LONGEST_NAME: usize = 253;

/// A search for Secrets in a namespace.
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

/// Results of one search.
#[derive(Debug)]
pub(super) struct KubeconfigSecrets {
    pub(super) secrets: WatchCache<String, CachedSecret>,
    pub(super) task: AbortHandle,
}

/// The relevant parts of a Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CachedSecret {
    /// Clusters it is labelled with.
    clusters: Vec<String>,
    data: BTreeMap<String, Vec<u8>>,
}

/// Leaves out the credentials.
impl std::fmt::Debug for CachedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedSecret")
            .field("clusters", &self.clusters)
            .finish_non_exhaustive()
    }
}

/// Result of resolving a ref.
#[derive(Debug)]
pub(super) enum Lead<'a> {
    Unread,
    /// The Secret does not exist.
    Missing(String),
    /// The cluster does not exist.
    NoCluster(String),
    /// The Cluster does not name its owner.
    OwnerMissing(String),
    /// The Cluster names other owners.
    Revoked(String),
    /// The cluster is not ready yet.
    Pending(String),
    Refused(Refusal),
    Found {
        source: Source,
        cached: &'a CachedSecret,
    },
}

pub(super) fn read_secret(secret: Secret) -> (String, Item<CachedSecret>) {
    let meta = secret.metadata;
    let labels = meta.labels.unwrap_or_default();
    let data = secret
        .data
        .into_iter()
        .flatten()
        .filter(|(_, bytes)| bytes.0.len() <= LARGEST_KUBECONFIG);
    let data = data.map(|(key, bytes)| (key, bytes.0)).collect();
    let clusters = LABELS
        .iter()
        .filter_map(|key| labels.get(*key).cloned())
        .collect();
    let of = CachedSecret { clusters, data };
    let (uid, version) = (
        meta.uid.unwrap_or_default(),
        Version::of(meta.resource_version.as_deref()),
    );
    (meta.name.unwrap_or_default(), Item { uid, version, of })
}

/// Reports whether a Secret can have this name. A ref is any text from a tenant
/// and could otherwise inject into a selector.
fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(fits)
}

/// Names of Secrets that a ref on the hub may mean, in order of preference.
fn names_of(name: &str) -> impl Iterator<Item = String> {
    [name.to_owned(), format!("{name}-kubeconfig")]
        .into_iter()
        .filter(|name| is_name(name))
}

/// Returns the searches for the Secret of a ref on the hub.
pub(super) fn searches_on_hub(namespace: &str, name: &str) -> impl Iterator<Item = Search> {
    let named = names_of(name).map(move |name| Search::named(namespace, &name));
    named.chain(LABELS.map(|label| Search::labelled(namespace, label)))
}

impl Search {
    pub(super) fn named(namespace: &str, name: &str) -> Search {
        Search {
            namespace: namespace.to_owned(),
            by: By::Name(name.to_owned()),
        }
    }

    fn labelled(namespace: &str, label: &'static str) -> Search {
        Search {
            namespace: namespace.to_owned(),
            by: By::Label(label),
        }
    }

    pub(super) fn scope(&self) -> Scope {
        match &self.by {
            By::Name(name) => Scope::named(name),
            By::Label(label) => Scope::labelled(label),
        }
    }
}

impl Engine {
    /// Watches the Secrets that refs may point to, and no others.
    pub(super) fn follow_secrets(&mut self) {
        let wanted: BTreeSet<Search> = self
            .records
            .values()
            .flat_map(|record| self.searches(record))
            .collect();
        self.state.kubeconfig_secrets.retain(|search, secrets_of| {
            let keep = wanted.contains(search);
            if !keep {
                secrets_of.task.abort();
            }
            keep
        });
        for search in wanted {
            if self.state.kubeconfig_secrets.contains_key(&search) {
                continue;
            }
            let api: Api<Secret> = Api::namespaced(self.environment.hub.clone(), &search.namespace);
            let watch_config = self.hub_watch_config(search.scope());
            let of = search.clone();
            let wrap = move |seen| {
                Event::Input(Input::Secrets {
                    search: of.clone(),
                    seen,
                })
            };
            let sink = EventSink {
                events: self.inbox.sender.clone(),
                wrap,
            };
            let task = self
                .tasks
                .spawn(follow(api, watch_config, read_secret, sink));
            self.state.kubeconfig_secrets.insert(
                search,
                KubeconfigSecrets {
                    secrets: WatchCache::default(),
                    task,
                },
            );
        }
    }

    /// Searches for the credentials of an object's clusters.
    pub(super) fn searches(&self, record: &Record) -> BTreeSet<Search> {
        let id = record.id();
        let refs = self.refs(record);
        match &self.state.sources.kcp {
            Some(kcp) => {
                let secrets = refs.iter().filter_map(|name| self.managed_secret(name));
                secrets
                    .filter(|(name, _)| is_name(name))
                    .map(|(name, _)| Search::named(&kcp.namespace, &name))
                    .collect()
            }
            None => refs
                .iter()
                .flat_map(|name| searches_on_hub(&id.namespace, name))
                .collect(),
        }
    }

    /// Resolves a ref of an object to a Secret.
    pub(super) fn lead(&self, id: &ObjectId, name: &str) -> Lead<'_> {
        match self.state.sources.kcp {
            Some(_) => self.lead_through_management(Asked {
                workspace: &id.workspace,
                namespace: &id.namespace,
                name,
            }),
            None => self.lead_on_hub(&id.namespace, name),
        }
    }

    fn found(&self, search: &Search) -> Option<&BTreeMap<String, Item<CachedSecret>>> {
        match self
            .state
            .kubeconfig_secrets
            .get(search)?
            .secrets
            .last_known()
        {
            Seen::Known(secrets) => Some(secrets),
            Seen::Unknown(_) => None,
        }
    }

    /// Returns a Secret by name.
    pub(super) fn secret(&self, namespace: &str, name: &str, key: Option<&str>) -> Lead<'_> {
        if !is_name(name) {
            return secret_among(&Secrets::new(), namespace, name, key);
        }
        let found = self.found(&Search::named(namespace, name));
        found.map_or(Lead::Unread, |found| {
            secret_among(&shown(found).collect(), namespace, name, key)
        })
    }

    fn lead_on_hub(&self, namespace: &str, name: &str) -> Lead<'_> {
        let known: Option<Vec<_>> = searches_on_hub(namespace, name)
            .map(|search| self.found(&search))
            .collect();
        known.map_or(Lead::Unread, |known| {
            lead_among(
                &known.into_iter().flat_map(shown).collect(),
                namespace,
                name,
            )
        })
    }
}

/// Secrets by name.
pub(super) type Secrets<'a> = BTreeMap<&'a str, &'a CachedSecret>;

pub(super) fn shown(
    found: &BTreeMap<String, Item<CachedSecret>>,
) -> impl Iterator<Item = (&str, &CachedSecret)> {
    found.iter().map(|(name, item)| (name.as_str(), &item.of))
}

fn secret_among<'a>(
    known: &Secrets<'a>,
    namespace: &str,
    name: &str,
    key: Option<&str>,
) -> Lead<'a> {
    let Some(cached) = known.get(name).copied() else {
        return Lead::Missing(format!(
            "Secret {} not found in namespace {namespace}",
            printable(name, 253)
        ));
    };
    let source = Source::Secret {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        key: key.map(str::to_owned),
    };
    Lead::Found { source, cached }
}

/// Returns the Secret that has the name of the ref or is labelled with it.
pub(super) fn lead_among<'a>(known: &Secrets<'a>, namespace: &str, name: &str) -> Lead<'a> {
    let by_name = names_of(name).find(|name| known.contains_key(name.as_str()));
    let mut labelled = known
        .iter()
        .filter(|(_, cached)| cached.clusters.iter().any(|cluster| cluster == name))
        .map(|(name, _)| *name);
    let shown = printable(name, 253);
    match (by_name, labelled.next(), labelled.next()) {
        (Some(found), _, _) => secret_among(known, namespace, &found, None),
        (None, Some(found), None) => secret_among(known, namespace, found, None),
        (None, None, _) => Lead::Missing(format!(
            "no Secret {shown} or {shown}-kubeconfig in namespace {namespace}, and none labelled with {shown}"
        )),
        (None, Some(one), Some(other)) => Lead::Missing(format!(
            "Secrets {one} and {other} in namespace {namespace} are both labelled with {shown}"
        )),
    }
}

impl Lead<'_> {
    /// Returns namespace and name of the Secret that was found.
    pub(super) fn secret(&self) -> Option<(String, String)> {
        match self {
            Lead::Found {
                source: Source::Secret {
                    namespace, name, ..
                },
                ..
            } => Some((namespace.clone(), name.clone())),
            _ => None,
        }
    }

    /// Returns the credentials, or why there are none.
    pub(super) fn access(self, allowed: &Allowed) -> Result<(Source, Access), String> {
        let refused = |refusal| match refusal {
            Refusal::Kubeconfig(why) | Refusal::Forbidden(why) => why,
            Refusal::Capability { status, .. } => format!("capability cilium-cni is {status}"),
            Refusal::Shared => "the cluster is already used by another owner".to_owned(),
        };
        match self {
            Lead::Found { source, cached } => match cached.access(&source, allowed) {
                Ok((access, _)) => Ok((source, access)),
                Err(refusal) => Err(refused(refusal)),
            },
            Lead::Missing(why)
            | Lead::NoCluster(why)
            | Lead::Pending(why)
            | Lead::OwnerMissing(why)
            | Lead::Revoked(why) => Err(why),
            Lead::Refused(refusal) => Err(refused(refusal)),
            Lead::Unread => Err("its Secret has not been read".to_owned()),
        }
    }
}

impl CachedSecret {
    /// Returns the validated kubeconfig with its hash, or why there is none. The
    /// reason never contains data from the Secret.
    pub(super) fn access(
        &self,
        source: &Source,
        allowed: &Allowed,
    ) -> Result<(Access, [u8; 32]), Refusal> {
        kubeconfig_in(
            |key| self.data.get(key).map(Vec::as_slice),
            source,
            &PROVIDER_KEYS,
            allowed,
        )
        .map_err(|unusable| match unusable {
            Unusable::Missing(why) | Unusable::Refused(why) => Refusal::Kubeconfig(why),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_that_no_secret_can_be_called_is_not_asked_for() {
        assert_eq!(
            names_of("east").collect::<Vec<_>>(),
            ["east", "east-kubeconfig"]
        );
        for name in [
            "",
            "East",
            "a,metadata.namespace=b",
            "a=b",
            "a b",
            "a!",
            &"a".repeat(254),
        ] {
            assert!(
                names_of(name).all(|name| is_name(&name)) && names_of(name).count() <= 1,
                "{name}"
            );
        }
        assert_eq!(names_of("a,metadata.name=b").count(), 0);
    }
}
