//! Reads a hub's bindings and the clusters they name once, step by step, as the
//! provider sees them after a restart. A step runs only if the previous one
//! succeeded. Read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::core::DynamicObject;
use kube::{Api, Client};
use mw_api::cilium::rbac::{cilium_rules, target_rules};
use mw_core::cilium::facts::Silence;
use mw_core::cilium::object::{ObjectId, Refusal, Resolution};
use mw_core::cilium::plan::Plan;
use mw_core::cilium::world::{Dialled, Evidence, Options, World};
use mw_core::names::{ClusterId, Workspace};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::cilium::cluster_cache::{CacheWatcher, ClusterCache, Wants};
use crate::cilium::dial::{Dialler, outcome};
use crate::cilium::engine::{Event, Input};
use crate::cilium::kubeconfig_secrets::{
    CachedSecret, Search, lead_among, read_secret, searches_on_hub, shown,
};
use crate::cilium::object_source::ObjectSource;
use crate::cilium::record::{Kind, Object, Record};
use crate::doctor::rights::{Granted, Who, granted, rights};
use crate::failure::Failure;
use crate::fleet::follow::{RESYNC, RelistSignal};
use crate::fleet::list::{Scope, list};
use crate::fleet::{Connect, MemoryBudget, Source};
use crate::kubeconfig::{Access, Allowed};
use crate::published_status::Interest;
use crate::watch_cache::Item;

/// Reads a hub and its clusters without writing.
#[derive(Clone)]
pub struct Examiner {
    /// Should not be able to write; nor should clients from `connect`.
    pub hub: Client,
    /// UID of the hub's Namespace kube-system.
    pub hub_uid: String,
    pub connect: Arc<dyn Connect>,
    pub dialler: Arc<dyn Dialler>,
    pub allowed: Allowed,
    /// Timeout for reading one cluster completely.
    pub deadline: Duration,
    /// Namespace of Cilium.
    pub cilium_namespace: String,
    pub now: Timestamp,
}

impl std::fmt::Debug for Examiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examiner").finish_non_exhaustive()
    }
}

/// Everything read about the requested objects.
#[derive(Debug)]
pub struct Examination {
    pub clusters: Vec<Examined>,
    pub world: World,
    pub plan: Plan,
}

/// The cluster behind a ref. Steps that were not reached are None.
#[derive(Debug)]
pub struct Examined {
    pub namespace: String,
    /// The ref.
    pub name: String,
    /// Namespace and name of the Secret with its credentials, or those it should
    /// have; None if that is not known.
    pub secret: Option<(String, String)>,
    /// Expiry of the credentials, if they have one; or why there are none.
    pub credentials: Result<Option<Timestamp>, String>,
    /// Kubernetes version of its API server.
    pub answers: Option<Result<String, Failure>>,
    pub rights: Option<Result<Granted, Failure>>,
    /// Identity of the cluster, once read.
    pub cluster: Option<ClusterId>,
}

impl Examined {
    pub(super) fn new(namespace: &str, name: &str, secret: Option<(String, String)>) -> Examined {
        let credentials = Ok(None);
        Examined {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            secret,
            credentials,
            answers: None,
            rights: None,
            cluster: None,
        }
    }

    /// Connects to the cluster and asks for its version and our rights. Returns the
    /// client if the cluster answers.
    pub(super) async fn ask(
        self,
        connect: &dyn Connect,
        access: Result<(Source, Access), String>,
        cilium_namespace: &str,
    ) -> (Examined, Option<(Source, Client)>) {
        let (source, access) = match access {
            Ok(found) => found,
            Err(why) => {
                return (
                    Examined {
                        credentials: Err(why),
                        ..self
                    },
                    None,
                );
            }
        };
        let examined = Examined {
            credentials: Ok(access.ends()),
            ..self
        };
        let client = match connect.connect(&source.id(), Arc::new(access)).await {
            Ok(client) => client,
            Err(refusal) => {
                return (
                    Examined {
                        credentials: Err(format!("kubeconfig refused: {refusal}")),
                        ..examined
                    },
                    None,
                );
            }
        };
        let version = client
            .apiserver_version()
            .await
            .map(|version| version.git_version)
            .map_err(|error| Failure::of(&error));
        if version.is_err() {
            return (
                Examined {
                    answers: Some(version),
                    ..examined
                },
                None,
            );
        }
        let mut needed = rights(&target_rules(), None);
        needed.extend(rights(&cilium_rules(), Some(cilium_namespace)));
        let rights = granted(&client, Who::Myself, &needed).await;
        (
            Examined {
                answers: Some(version),
                rights: Some(rights),
                ..examined
            },
            Some((source, client)),
        )
    }
}

type Secrets = BTreeMap<String, Item<CachedSecret>>;

impl Examiner {
    /// Examines all bindings, those of a namespace, or one.
    pub async fn examine(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<Examination, Failure> {
        let resource = Kind::Binding.resource();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.hub.clone(), namespace, &resource),
            None => Api::all_with(self.hub.clone(), &resource),
        };
        let objects = list(
            &api,
            &name.map_or_else(Scope::default, Scope::named),
            &|object| object,
        )
        .await?
        .items;
        let read = |object: &DynamicObject| {
            Record::read(ObjectSource::Hub, Kind::Binding, &self.hub_uid, object)
        };
        self.look(
            objects
                .iter()
                .filter_map(read)
                .map(|record| record.state.object)
                .collect(),
            false,
        )
        .await
    }

    /// Examines the requested objects, plus those that depend on a named binding.
    /// Deletions are planned only if all objects of the hub are known.
    pub async fn survey(&self, interest: &Interest) -> Result<Examination, Failure> {
        let mut objects: Vec<Object> = Vec::new();
        for kind in Kind::ALL {
            let api: Api<DynamicObject> = match interest.namespace() {
                Some(namespace) => {
                    Api::namespaced_with(self.hub.clone(), namespace, &kind.resource())
                }
                None => Api::all_with(self.hub.clone(), &kind.resource()),
            };
            let found = list(&api, &Scope::default(), &|object| object).await?.items;
            objects.extend(
                found
                    .iter()
                    .filter_map(|object| {
                        Record::read(ObjectSource::Hub, kind, &self.hub_uid, object)
                    })
                    .map(|record| record.state.object),
            );
        }
        let chosen = selection(interest, &objects);
        objects.retain(|object| chosen.contains(&object.common().id));
        self.look(objects, matches!(interest, Interest::All)).await
    }

    async fn look(&self, objects: Vec<Object>, all: bool) -> Result<Examination, Failure> {
        let wants = Wants {
            services: objects
                .iter()
                .any(|object| matches!(object, Object::Service(_))),
            policies: objects
                .iter()
                .any(|object| matches!(object, Object::Intent(_))),
        };
        let refs: BTreeSet<(String, String)> = objects
            .iter()
            .flat_map(|object| refs(object, &objects))
            .collect();
        let kubeconfig_secrets = kubeconfig_secrets(&self.hub, &refs).await?;
        let visits = join_all(refs.iter().map(|(namespace, name)| {
            self.visit(namespace, name, kubeconfig_secrets.get(namespace), wants)
        }))
        .await;
        let (mut world, clusters) = self.world(objects, visits);
        if all && clusters.iter().all(|cluster| cluster.cluster.is_some()) {
            world.settled = world.clusters.keys().cloned().collect();
            world.listed = [Workspace::from(self.hub_uid.as_str())].into();
        }
        let (world, plan) = self.dialled(world).await;
        Ok(Examination {
            clusters,
            world,
            plan,
        })
    }

    async fn visit(
        &self,
        namespace: &str,
        name: &str,
        secrets: Option<&Secrets>,
        wants: Wants,
    ) -> (Examined, Option<ClusterCache>) {
        let known = secrets.into_iter().flat_map(shown).collect();
        let lead = lead_among(&known, namespace, name);
        let secret = lead
            .secret()
            .unwrap_or_else(|| (namespace.to_owned(), name.to_owned()));
        let examined = Examined::new(namespace, name, Some(secret));
        let (mut examined, reached) = examined
            .ask(
                &*self.connect,
                lead.access(&self.allowed),
                &self.cilium_namespace,
            )
            .await;
        let Some((source, client)) = reached else {
            return (examined, None);
        };
        let cluster_cache = self.cluster_cache(&source.id(), &client, wants).await;
        examined.cluster = cluster_cache.uid().map(|_| source.id());
        (examined, Some(cluster_cache))
    }

    /// Watches a cluster until everything is listed or has failed.
    async fn cluster_cache(
        &self,
        cluster: &ClusterId,
        client: &Client,
        wants: Wants,
    ) -> ClusterCache {
        let (sender, mut events) = mpsc::channel(64);
        let (mut relist, mut tasks, mut cluster_cache) = (
            RelistSignal::default(),
            JoinSet::new(),
            ClusterCache::default(),
        );
        let backoff = || Backoff::of_watch(fastrand::Rng::with_seed(0));
        let namespace = self.cilium_namespace.as_str();
        // The process answers one question and ends.
        let memory = &MemoryBudget::new(usize::MAX);
        let (relist, tasks, resync) = (&mut relist, &mut tasks, RESYNC);
        let mut cache_watcher = CacheWatcher {
            client,
            cluster,
            epoch: 0,
            namespace,
            reads_ca: true,
            events: &sender,
            backoff,
            resync,
            relist,
            tasks,
            memory,
        };
        cache_watcher.watch_basics();
        if wants.services {
            cache_watcher.watch_endpoints();
        }
        if wants.policies {
            cache_watcher.watch_policies();
        }
        let listing = async {
            while cluster_cache.lacks_something() || cluster_cache.lacks(wants) {
                match events.recv().await {
                    Some(Event::Input(Input::Cached { take, .. })) => _ = take(&mut cluster_cache),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        // Kinds that are not listed in time stay unknown.
        _ = timeout(self.deadline, listing).await;
        cluster_cache
    }

    fn world(
        &self,
        objects: Vec<Object>,
        visits: Vec<(Examined, Option<ClusterCache>)>,
    ) -> (World, Vec<Examined>) {
        let options = Options {
            cilium_namespace: self.cilium_namespace.clone(),
            ..Options::default()
        };
        let mut world = World {
            options,
            now: self.now,
            ..World::default()
        };
        let (mut leads, mut clusters) = (BTreeMap::new(), Vec::new());
        let mut first: BTreeMap<(String, String), ClusterId> = BTreeMap::new();
        for (mut examined, cluster_cache) in visits {
            // Two Secrets of one namespace may point to the same cluster.
            if let (Some(cluster), Some(uid)) = (
                &mut examined.cluster,
                cluster_cache.as_ref().and_then(ClusterCache::uid),
            ) {
                *cluster = first
                    .entry((examined.namespace.clone(), uid))
                    .or_insert_with(|| cluster.clone())
                    .clone();
            }
            leads.insert(
                (examined.namespace.clone(), examined.name.clone()),
                resolution(&examined, cluster_cache.as_ref()),
            );
            if let (Some(cluster), Some(cluster_cache)) = (&examined.cluster, cluster_cache) {
                let remembered = cluster_cache.identity();
                world.clusters.insert(
                    cluster.clone(),
                    cluster_cache.seen(&self.cilium_namespace, remembered),
                );
            }
            clusters.push(examined);
        }
        let all = objects.clone();
        for mut object in objects {
            let lead = |(namespace, name): (String, String)| {
                Some((name.clone(), leads.get(&(namespace, name))?.clone()))
            };
            object.common_mut().refs = refs(&object, &all).into_iter().filter_map(lead).collect();
            let id = object.common().id.clone();
            match object {
                Object::Binding(of) => _ = world.bindings.insert(id, of),
                Object::Service(of) => _ = world.services.insert(id, of),
                Object::Intent(of) => _ = world.intents.insert(id, of),
            }
        }
        (world, clusters)
    }

    /// Performs the planned dials and returns the plan made with their results.
    async fn dialled(&self, mut world: World) -> (World, Plan) {
        let plan = mw_core::cilium::plan(&world);
        let dials = plan.dials.into_iter().map(|(link, dial)| async move {
            let fingerprint = dial.fingerprint.clone();
            (link, fingerprint, self.dialler.dial(dial).await)
        });
        for (link, fingerprint, result) in join_all(dials).await {
            let dial = Some(Dialled {
                fingerprint,
                at: self.now,
                outcome: outcome(None, result, self.now),
            });
            world.evidence.insert(
                link,
                Evidence {
                    dial,
                    reader: Seen::Unknown("not asked".to_owned()),
                },
            );
        }
        let plan = mw_core::cilium::plan(&world);
        (world, plan)
    }
}

/// The requested objects, plus those that depend on a named binding, and the
/// binding that a named GlobalService or ConnectivityIntent needs.
pub(super) fn selection(interest: &Interest, objects: &[Object]) -> BTreeSet<ObjectId> {
    let near = |object: &&Object| {
        interest
            .namespace()
            .is_none_or(|namespace| object.common().id.namespace == namespace)
    };
    let name = match interest {
        Interest::Mesh(id) => Some(id.name.as_str()),
        Interest::Namespace(_) | Interest::All => None,
    };
    let named = |object: &&Object| Some(object.common().id.name.as_str()) == name;
    let needed = objects
        .iter()
        .filter(near)
        .find(named)
        .and_then(Object::mesh);
    let is_chosen = |object: &&Object| {
        name.is_none()
            || named(object)
            || object.mesh() == name
            || needed == Some(object.common().id.name.as_str())
    };
    objects
        .iter()
        .filter(near)
        .filter(is_chosen)
        .map(|object| object.common().id.clone())
        .collect()
}

/// Refs that an object names itself or through its binding, and refs it touched,
/// each with its namespace.
fn refs(object: &Object, all: &[Object]) -> BTreeSet<(String, String)> {
    let common = object.common();
    let mesh = object.mesh().map(|mesh| common.id.neighbour(mesh));
    let binding = all.iter().find_map(|other| match other {
        Object::Binding(of) if mesh.as_ref() == Some(&of.common.id) => Some(of),
        _ => None,
    });
    object
        .names(binding)
        .into_iter()
        .chain(common.touched.clone())
        .map(|name| (common.id.namespace.clone(), name))
        .collect()
}

fn resolution(examined: &Examined, cluster_cache: Option<&ClusterCache>) -> Resolution {
    if let Err(why) = &examined.credentials {
        return Resolution::Refused(Refusal::Kubeconfig(why.clone()));
    }
    if let Some(cluster) = &examined.cluster {
        return Resolution::Cluster(cluster.clone());
    }
    match (
        cluster_cache.and_then(ClusterCache::silence),
        &examined.answers,
    ) {
        (Some(Silence::Forbidden(why)), _) => Resolution::Refused(Refusal::Forbidden(why)),
        (Some(Silence::Unreachable(why)), _) => Resolution::Unreachable(why),
        (None, Some(Err(failure))) => Resolution::Unreachable(failure.to_string()),
        (None, _) => Resolution::Unreachable("not read within the timeout".to_owned()),
    }
}

/// Reads the Secrets that the provider would read for these refs, by namespace.
async fn kubeconfig_secrets(
    hub: &Client,
    refs: &BTreeSet<(String, String)>,
) -> Result<BTreeMap<String, Secrets>, Failure> {
    let searches: BTreeSet<Search> = refs
        .iter()
        .flat_map(|(namespace, name)| searches_on_hub(namespace, name))
        .collect();
    let mut kubeconfig_secrets: BTreeMap<String, Secrets> = BTreeMap::new();
    for search in searches {
        let api: Api<Secret> = Api::namespaced(hub.clone(), &search.namespace);
        let secrets = list(&api, &search.scope(), &read_secret).await?.items;
        kubeconfig_secrets
            .entry(search.namespace)
            .or_default()
            .extend(secrets);
    }
    Ok(kubeconfig_secrets)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Mutex;

    use kube::client::Body;

    #[tokio::test]
    async fn no_secrets_are_read_but_those_that_a_ref_may_mean() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&asked);
        let hub = tower::service_fn(move |request: http::Request<Body>| {
            log.lock().unwrap().push(request.uri().to_string());
            let none = Body::from(br#"{"metadata":{"resourceVersion":"1"},"items":[]}"#.to_vec());
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(none)) }
        });
        let refs = BTreeSet::from([
            ("net".to_owned(), "east".to_owned()),
            ("net".to_owned(), "west".to_owned()),
        ]);
        kubeconfig_secrets(&Client::new(hub, "default"), &refs)
            .await
            .unwrap();
        let selectors = [
            "fieldSelector=metadata.name%3Deast",
            "fieldSelector=metadata.name%3Deast-kubeconfig",
            "fieldSelector=metadata.name%3Dwest",
            "fieldSelector=metadata.name%3Dwest-kubeconfig",
            "labelSelector=cluster.x-k8s.io%2Fcluster-name",
            "labelSelector=networking.edge-portal.eu%2Fcluster",
        ];
        let asked = asked.lock().unwrap();
        let chosen: Vec<&str> = asked
            .iter()
            .map(|uri| uri.split('&').nth(1).unwrap())
            .collect();
        assert_eq!(chosen, selectors, "{asked:?}");
    }
}
