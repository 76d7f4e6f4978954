//! Snapshot of the meshes of a hub and the clusters they name, as the operator
//! would see them after a restart. Watches nothing and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Secret;
use kube::core::{ApiResource, DynamicObject, TypeMeta};
use kube::{Api, Client};
use mw_api::kilo::clustermesh::ClusterMesh;
use mw_api::kilo::convert::peer_facts;
use mw_api::kilo::peer::{API_VERSION, KIND, Peer};
use mw_api::node::Node as KubeNode;
use mw_core::kilo::guard::HeldLine;
use mw_core::kilo::node::{Node, Nodes};
use mw_core::kilo::peer::PeerFacts;
use mw_core::kilo::planner::{ClusterSeen, LinkFacts, Options, World};
use mw_core::kilo::{Absent, Departures, Orphans};
use mw_core::names::{ClusterId, ClusterName, MeshId, NodeName, PeerName};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde_json::Value;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::fleet::list::{Scope, list};
use crate::fleet::{Connect, Credentials, Source, kubeconfig_of};
use crate::kilo::credentials::{MOST_NODES, MOST_PEERS, read_node};
use crate::kilo::feeds::Followed;
use crate::kilo::identity::{LinkIdentity, Users, identities, links, representatives, sample};
use crate::kilo::record::Record;
use crate::kubeconfig::{Allowed, Server};
use crate::published_status::Interest;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "the ClusterMesh CRD is not installed (404); check that this cluster is the hub and that meshwright is installed"
    )]
    NoResource,
    #[error("cannot list ClusterMeshes in all namespaces: {0}")]
    ListAll(Failure),
    #[error("cannot list ClusterMeshes in all namespaces: {0}; select one namespace with -n")]
    NotAll(Failure),
    #[error("cannot list ClusterMeshes in namespace {namespace}: {failure}")]
    List { namespace: String, failure: Failure },
    #[error("ClusterMesh {} not found in namespace {}", .0.name, .0.namespace)]
    NoMesh(MeshId),
}

/// Clients and settings for taking a snapshot.
#[derive(Clone)]
pub struct SnapshotReader {
    /// Should be read-only, like the clients of `connect`.
    pub hub: Client,
    /// UID of the hub's Namespace kube-system.
    pub hub_uid: String,
    pub connect: Arc<dyn Connect>,
    pub allowed: Allowed,
    /// Timeout for all requests to one cluster.
    pub deadline: Duration,
    pub node_grace: Duration,
    pub now: Timestamp,
}

impl std::fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReader").finish_non_exhaustive()
    }
}

/// The snapshot. Clusters have the names that the selected meshes use for them.
#[derive(Debug)]
pub struct Snapshot {
    pub world: World,
    pub asked: BTreeSet<MeshId>,
    /// Complete Peers, without managedFields.
    pub objects: BTreeMap<ClusterId, BTreeMap<PeerName, Value>>,
    /// ClusterMeshes whose spec can't be parsed, with the reason.
    pub misread: BTreeMap<MeshId, String>,
    /// The only namespace whose ClusterMeshes may be listed; None if all may.
    pub limited_to: Option<String>,
    /// ClusterMeshes with our finalizer.
    pub finalized: BTreeSet<MeshId>,
}

impl SnapshotReader {
    pub async fn snapshot(&self, interest: &Interest) -> Result<Snapshot, SnapshotError> {
        let (objects, limited_to) = visible_meshes(&self.hub, interest).await?;
        let records: BTreeMap<MeshId, Record> = objects
            .iter()
            .map(|object| Record::read(object).recalled())
            .map(|record| (record.id().clone(), record))
            .collect();
        let asked: BTreeSet<MeshId> = records
            .keys()
            .filter(|id| interest.includes(id))
            .cloned()
            .collect();
        if let (Interest::Mesh(id), true) = (interest, asked.is_empty()) {
            return Err(SnapshotError::NoMesh(id.clone()));
        }
        let of_asked = records
            .values()
            .filter(|record| asked.contains(record.id()));
        let mut sources: BTreeSet<Source> = of_asked
            .flat_map(|record| record.reaches().into_keys())
            .collect();
        sources.insert(Source::Hub);
        let visits = join_all(sources.iter().map(|source| self.visit(source))).await;
        let named = |(source, visit): (&Source, Visit)| {
            (
                source.id(),
                Visit {
                    namespace: source.namespace().map(str::to_owned),
                    ..visit
                },
            )
        };
        let visits = sources.iter().zip(visits).map(named).collect();
        Ok(self.put_together(&records, asked, visits, limited_to))
    }

    /// Reads one cluster; one that hangs does not delay the others.
    async fn visit(&self, source: &Source) -> Visit {
        match timeout(self.deadline, self.try_visit(source)).await {
            Ok(visit) => visit,
            Err(_) => Visit::unknown(None, Failure::Timeout(self.deadline).to_string()),
        }
    }

    async fn try_visit(&self, source: &Source) -> Visit {
        let Connection {
            client,
            server,
            ends: _,
        } = match self.connection(source).await {
            Ok(connection) => connection,
            Err((server, why)) => return Visit::unknown(server, why),
        };
        let scope = Scope::at_most(MOST_NODES);
        let (nodes, peers) = (Api::<KubeNode>::all(client.clone()), peers_of(client));
        let (nodes, peers) = join(
            list(&nodes, &scope, &|node| self.node(node)),
            list_peers(&peers),
        )
        .await;
        let (peers, objects) = match peers {
            Ok((peers, objects)) => (Seen::Known(peers), objects),
            Err(failure) => (
                Seen::Unknown(Followed::Peers.why_not(&failure)),
                BTreeMap::new(),
            ),
        };
        let nodes = match nodes {
            Ok(nodes) => Seen::Known(nodes.items.into_iter().collect()),
            Err(failure) => Seen::Unknown(Followed::Nodes.why_not(&failure)),
        };
        Visit {
            namespace: None,
            server,
            nodes,
            peers,
            objects,
        }
    }

    /// Converts a Node. The grace period of a bare node starts now.
    fn node(&self, node: KubeNode) -> (NodeName, Arc<Node>) {
        let node = read_node(node);
        let bare_since = node.is_bare().then_some(self.now);
        (node.name.clone(), Arc::new(Node { bare_since, ..node }))
    }

    pub(super) async fn connection(
        &self,
        source: &Source,
    ) -> Result<Connection, (Option<Server>, String)> {
        let Source::Secret {
            namespace, name, ..
        } = source
        else {
            return Ok(Connection {
                client: self.hub.clone(),
                server: None,
                ends: None,
            });
        };
        let secrets: Api<Secret> = Api::namespaced(self.hub.clone(), namespace);
        let scope = Scope::named(name);
        let found = list(&secrets, &scope, &|secret| secret)
            .await
            .map_err(|failure| Credentials::Unread(Some(failure)));
        let access =
            found.and_then(|found| kubeconfig_of(found.items.first(), source, &self.allowed));
        let (access, _) = access
            .map_err(|credentials| (None, credentials.trouble(source).unwrap_or_default()))?;
        let (server, ends) = (access.server(), access.ends());
        match self.connect.connect(&source.id(), Arc::new(access)).await {
            Ok(client) => Ok(Connection {
                client,
                server,
                ends,
            }),
            Err(refusal) => Err((server, format!("kubeconfig refused: {refusal}"))),
        }
    }

    fn put_together(
        &self,
        records: &BTreeMap<MeshId, Record>,
        asked: BTreeSet<MeshId>,
        visits: BTreeMap<ClusterId, Visit>,
        limited_to: Option<String>,
    ) -> Snapshot {
        let identified = visits
            .iter()
            .map(|(id, visit)| (id.clone(), visit.identity()))
            .collect();
        let of_asked = records
            .values()
            .filter(|record| asked.contains(record.id()));
        let representatives = representatives(&identified, &Users::of(of_asked));
        let (identities, strays) = identities(records.values(), &identified, &representatives);
        let called = called(&asked, &identities, representatives.values());
        let renamed = |id: &ClusterId| {
            let representative = representatives.get(id).unwrap_or(id);
            if strays.contains_key(id) {
                id.clone()
            } else {
                called.get(representative).unwrap_or(id).clone()
            }
        };
        let mut meshes = BTreeMap::new();
        for (id, record) in records {
            let mut mesh = record.input();
            mesh.held = mesh
                .held
                .into_iter()
                .map(|line| HeldLine {
                    target: renamed(&line.target),
                    ..line
                })
                .collect();
            meshes.insert(id.clone(), mesh);
        }
        let (mut clusters, mut objects) = (BTreeMap::new(), BTreeMap::new());
        for (id, visit) in visits
            .into_iter()
            .filter(|(id, _)| representatives.get(id).is_none_or(|of| of == id))
        {
            let departures = Departures::default();
            clusters.insert(
                renamed(&id),
                ClusterSeen {
                    nodes: visit.nodes,
                    peers: visit.peers,
                    departures,
                },
            );
            objects.insert(renamed(&id), visit.objects);
        }
        for (id, why) in &strays {
            let (nodes, peers) = (Seen::Unknown(why.clone()), Seen::Unknown(why.clone()));
            clusters.insert(
                id.clone(),
                ClusterSeen {
                    nodes,
                    peers,
                    departures: Departures::default(),
                },
            );
        }
        let options = Options {
            hub: Some(self.hub_uid.clone()),
            node_grace_seconds: self.node_grace.as_secs(),
            ..Options::default()
        };
        let identities = identities
            .into_iter()
            .map(|(entry, id)| (entry, renamed(&id)))
            .collect();
        let misread = records
            .iter()
            .filter_map(|(id, record)| Some((id.clone(), record.misread.clone()?)))
            .collect();
        let absent = if limited_to.is_none() {
            Absent::AllOthers
        } else {
            Absent::Unknown
        };
        let orphans = Orphans {
            absent,
            ..Orphans::default()
        };
        let links = links(&identified)
            .into_iter()
            .map(|(id, link)| (renamed(&id), renamed_link(link, &renamed)))
            .collect();
        let world = World {
            options,
            now: self.now,
            meshes,
            clusters,
            identities,
            links,
            orphans,
            ..World::default()
        };
        let finalized = records
            .iter()
            .filter(|(_, record)| record.has_finalizer())
            .map(|(id, _)| id.clone())
            .collect();
        Snapshot {
            world,
            asked,
            objects,
            misread,
            limited_to,
            finalized,
        }
    }
}

fn renamed_link(link: LinkFacts, renamed: &impl Fn(&ClusterId) -> ClusterId) -> LinkFacts {
    let LinkFacts {
        namespace,
        proven,
        kin,
    } = link;
    LinkFacts {
        namespace,
        proven: proven.map(|id| renamed(&id)),
        kin: kin.iter().map(renamed).collect(),
    }
}

/// A client of a cluster.
pub(super) struct Connection {
    pub(super) client: Client,
    server: Option<Server>,
    /// Expiry of its credentials, if any.
    pub(super) ends: Option<Timestamp>,
}

/// Returns all ClusterMeshes, or those of one namespace with its name if listing
/// all is forbidden.
pub(super) async fn visible_meshes(
    hub: &Client,
    interest: &Interest,
) -> Result<(Vec<DynamicObject>, Option<String>), SnapshotError> {
    let resource = ApiResource::erase::<ClusterMesh>(&());
    let all: Api<DynamicObject> = Api::all_with(hub.clone(), &resource);
    let failure = match list(&all, &Scope::default(), &|mesh| mesh).await {
        Ok(listed) => return Ok((listed.items, None)),
        Err(Failure::NotFound(_)) => return Err(SnapshotError::NoResource),
        Err(failure) => failure,
    };
    match (&failure, interest.namespace()) {
        (Failure::Forbidden(_), Some(namespace)) => {
            let own: Api<DynamicObject> = Api::namespaced_with(hub.clone(), namespace, &resource);
            let failed = |failure| SnapshotError::List {
                namespace: namespace.to_owned(),
                failure,
            };
            let listed = list(&own, &Scope::default(), &|mesh| mesh)
                .await
                .map_err(failed)?;
            Ok((listed.items, Some(namespace.to_owned())))
        }
        (Failure::Forbidden(_), None) => Err(SnapshotError::NotAll(failure)),
        _ => Err(SnapshotError::ListAll(failure)),
    }
}

/// Result of reading one cluster.
#[derive(Debug)]
struct Visit {
    /// Namespace of the Secret; None for the hub.
    namespace: Option<String>,
    server: Option<Server>,
    nodes: Seen<Nodes>,
    peers: Seen<BTreeMap<PeerName, PeerFacts>>,
    objects: BTreeMap<PeerName, Value>,
}

impl Visit {
    fn unknown(server: Option<Server>, why: String) -> Visit {
        Visit {
            namespace: None,
            server,
            nodes: Seen::Unknown(why.clone()),
            peers: Seen::Unknown(why),
            objects: BTreeMap::new(),
        }
    }

    fn identity(&self) -> LinkIdentity {
        let nodes = self.nodes.known();
        LinkIdentity {
            namespace: self.namespace.clone(),
            ca: None,
            awaited: false,
            server: self.server.clone(),
            nodes: nodes.map(|nodes| sample(nodes.values().map(|node| node.uid.as_str()))),
            usable: nodes.is_some() && self.peers.known().is_some(),
            since: 0,
            replaced: false,
        }
    }
}

fn peers_of(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<Peer>(&()))
}

type Peers = (BTreeMap<PeerName, PeerFacts>, BTreeMap<PeerName, Value>);

/// Lists the Peers, for the planner and as complete objects.
async fn list_peers(api: &Api<DynamicObject>) -> Result<Peers, Failure> {
    let items = list(api, &Scope::at_most(MOST_PEERS), &|peer| peer)
        .await?
        .items;
    let (mut peers, mut objects) = (BTreeMap::new(), BTreeMap::new());
    for mut item in items {
        // Items of a list have no apiVersion and kind; kubectl hides managedFields.
        item.types = Some(TypeMeta {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
        });
        item.metadata.managed_fields = None;
        let unreadable = || Failure::Unreadable("a Peer does not match its CRD".to_owned());
        let object = serde_json::to_value(item).map_err(|_| unreadable())?;
        let peer: Peer = serde_json::from_value(object.clone()).map_err(|_| unreadable())?;
        let facts = peer_facts(&peer);
        let name = PeerName::from(facts.name.as_str());
        peers.insert(name.clone(), facts);
        objects.insert(name, object);
    }
    Ok((peers, objects))
}

/// Returns the name to show for each cluster: its first name in a selected mesh.
/// If two clusters share that name, the source of their kubeconfig is added.
fn called<'a>(
    asked: &BTreeSet<MeshId>,
    identities: &BTreeMap<(MeshId, ClusterName), ClusterId>,
    clusters: impl Iterator<Item = &'a ClusterId>,
) -> BTreeMap<ClusterId, ClusterId> {
    let mut names: BTreeMap<&ClusterId, &str> = clusters.map(|id| (id, id.as_str())).collect();
    let mut given: BTreeMap<&ClusterId, BTreeSet<&str>> = BTreeMap::new();
    for ((_, name), id) in identities
        .iter()
        .filter(|((mesh, _), _)| asked.contains(mesh))
    {
        given.entry(id).or_default().insert(name.as_str());
    }
    names.extend(
        given
            .iter()
            .filter_map(|(id, names)| Some((*id, *names.first()?))),
    );
    let shared = |name: &str| names.values().filter(|other| **other == name).count() > 1;
    let name = |id: &ClusterId, name: &str| {
        if shared(name) && id.as_str() != name {
            format!("{name} ({id})")
        } else {
            name.to_owned()
        }
    };
    names
        .iter()
        .map(|(id, of)| ((*id).clone(), ClusterId::from(name(id, of).as_str())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(namespace: &str, name: &str, id: &str) -> ((MeshId, ClusterName), ClusterId) {
        (
            (
                MeshId::new(namespace, "prod"),
                ClusterName::try_from(name).unwrap(),
            ),
            ClusterId::from(id),
        )
    }

    #[test]
    fn clusters_go_by_the_names_of_the_meshes_asked_about() {
        let identities = BTreeMap::from([
            entry("one", "hub", "local"),
            entry("one", "eu", "one/eu"),
            entry("two", "berlin", "local"),
            entry("two", "eu", "two/eu"),
            entry("three", "a", "one/eu"),
        ]);
        let ids = ["local", "one/eu", "two/eu", "two/old"].map(ClusterId::from);
        let asked = BTreeSet::from([MeshId::new("one", "prod"), MeshId::new("two", "prod")]);
        let names = called(&asked, &identities, ids.iter());
        let names: Vec<&str> = names.values().map(ClusterId::as_str).collect();
        assert_eq!(names, ["berlin", "eu (one/eu)", "eu (two/eu)", "two/old"]);
        let names = called(
            &BTreeSet::from([MeshId::new("one", "prod")]),
            &identities,
            ids.iter(),
        );
        assert_eq!(
            names.values().map(ClusterId::as_str).collect::<Vec<_>>(),
            ["hub", "eu", "two/eu", "two/old"]
        );
    }
}
