//! The bindings of a hub and the clusters they name, looked at once and step by
//! step, as the provider would see them after a restart. The next step is taken
//! only where the one before succeeded. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::core::DynamicObject;
use kube::{Api, Client};
use mw_api::cilium::rbac::{cilium_rules, target_rules};
use mw_core::cilium::facts::Silence;
use mw_core::cilium::object::{Binding, Refusal, Resolution};
use mw_core::cilium::plan::Plan;
use mw_core::cilium::world::{Dialled, Evidence, Options, World};
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::cilium::dial::{Dialler, outcome};
use crate::cilium::engine::Event;
use crate::cilium::realm::Realm;
use crate::cilium::record::{Kind, Object, Record};
use crate::cilium::sights::{Lookout, Sights};
use crate::cilium::vault::{Lead, SecretSight, lead_among, read_secret, shown};
use crate::doctor::rights::{Granted, Who, granted, rights};
use crate::failure::Failure;
use crate::fleet::follow::{Bell, RESYNC};
use crate::fleet::list::{Scope, list};
use crate::fleet::{Connect, Source};
use crate::kubeconfig::Allowed;
use crate::mirror::Item;

/// Who looks, and how.
#[derive(Clone)]
pub struct Examiner {
    /// Should not be able to write, and neither should those of `connect`.
    pub hub: Client,
    /// UID of the hub's Namespace kube-system.
    pub hub_uid: String,
    pub connect: Arc<dyn Connect>,
    pub dialler: Arc<dyn Dialler>,
    pub allowed: Allowed,
    /// How long one cluster may take for everything.
    pub deadline: Duration,
    /// Where Cilium runs.
    pub cilium_namespace: String,
    pub now: Timestamp,
}

impl std::fmt::Debug for Examiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examiner").finish_non_exhaustive()
    }
}

/// All that was seen of the bindings asked about.
#[derive(Debug)]
pub struct Examination {
    pub clusters: Vec<Examined>,
    pub world: World,
    pub plan: Plan,
}

/// The cluster behind a ref. What was not asked, because of what came before,
/// is None.
#[derive(Debug)]
pub struct Examined {
    pub namespace: String,
    /// The ref.
    pub name: String,
    /// The Secret that it leads to, or would.
    pub secret: String,
    /// When they end, where they say so; or why there are none.
    pub credentials: Result<Option<Timestamp>, String>,
    /// Its version.
    pub answers: Option<Result<String, Failure>>,
    pub rights: Option<Result<Granted, Failure>>,
    /// Which cluster it is, once that was seen.
    pub cluster: Option<ClusterId>,
}

type Secrets = BTreeMap<String, Item<SecretSight>>;

impl Examiner {
    /// The bindings of a namespace, or one of them, or all.
    pub async fn examine(&self, namespace: Option<&str>, name: Option<&str>) -> Result<Examination, Failure> {
        let resource = Kind::Binding.resource();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.hub.clone(), namespace, &resource),
            None => Api::all_with(self.hub.clone(), &resource),
        };
        let objects = list(&api, &name.map_or_else(Scope::default, Scope::named), &|object| object).await?.items;
        let read = |object: &DynamicObject| Record::read(Realm::Hub, Kind::Binding, &self.hub_uid, object);
        let bindings: Vec<Binding> = objects.iter().filter_map(read).filter_map(binding).collect();
        let refs: BTreeSet<(String, String)> = bindings.iter().flat_map(refs).collect();
        let vaults = self.vaults(refs.iter().map(|(namespace, _)| namespace.clone()).collect()).await?;
        let visits = join_all(refs.iter().map(|(namespace, name)| self.visit(namespace, name, vaults.get(namespace)))).await;
        let (world, clusters) = self.world(bindings, visits);
        let (world, plan) = self.dialled(world).await;
        Ok(Examination { clusters, world, plan })
    }

    async fn vaults(&self, namespaces: BTreeSet<String>) -> Result<BTreeMap<String, Secrets>, Failure> {
        let mut vaults = BTreeMap::new();
        for namespace in namespaces {
            let api: Api<Secret> = Api::namespaced(self.hub.clone(), &namespace);
            let secrets = list(&api, &Scope::default(), &read_secret).await?.items;
            vaults.insert(namespace, secrets.into_iter().collect());
        }
        Ok(vaults)
    }

    async fn visit(&self, namespace: &str, name: &str, secrets: Option<&Secrets>) -> (Examined, Option<Sights>) {
        let known = secrets.into_iter().flat_map(shown).collect();
        let lead = lead_among(&known, namespace, name);
        let secret = match &lead {
            Lead::Found { source: Source::Secret { name, .. }, .. } => name.clone(),
            _ => name.to_owned(),
        };
        let examined = |credentials| Examined {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            secret,
            credentials,
            answers: None,
            rights: None,
            cluster: None,
        };
        let (source, access) = match lead {
            Lead::Found { source, sight } => match sight.access(&source, &self.allowed) {
                Ok((access, _)) => (source, access),
                Err(Refusal::Kubeconfig(why) | Refusal::Forbidden(why)) => return (examined(Err(why)), None),
                Err(Refusal::Capability { status, .. }) => return (examined(Err(status)), None),
                Err(Refusal::Shared) => return (examined(Err("the cluster is already used by another owner".to_owned())), None),
            },
            Lead::Missing(why) | Lead::NoCluster(why) | Lead::Pending(why) | Lead::OwnerMissing(why) | Lead::Revoked(why) => {
                return (examined(Err(why)), None);
            }
            Lead::Unread | Lead::Refused(_) => return (examined(Err("its Secret was not read".to_owned())), None),
        };
        let ends = access.ends();
        match self.connect.connect(&source.id(), Arc::new(access)).await {
            Ok(client) => self.ask(&source, client, examined(Ok(ends))).await,
            Err(refusal) => (examined(Err(format!("its kubeconfig {refusal}"))), None),
        }
    }

    async fn ask(&self, source: &Source, client: Client, examined: Examined) -> (Examined, Option<Sights>) {
        let version = client.apiserver_version().await.map(|version| version.git_version).map_err(|error| Failure::of(&error));
        if version.is_err() {
            return (Examined { answers: Some(version), ..examined }, None);
        }
        let mut needed = rights(&target_rules(), None);
        needed.extend(rights(&cilium_rules(), Some(&self.cilium_namespace)));
        let rights = granted(&client, Who::Myself, &needed).await;
        let sights = self.sights(&source.id(), &client).await;
        let cluster = sights.uid().map(|_| source.id());
        (Examined { answers: Some(version), rights: Some(rights), cluster, ..examined }, Some(sights))
    }

    /// Follows a cluster until everything was listed, or can't be.
    async fn sights(&self, cluster: &ClusterId, client: &Client) -> Sights {
        let (sender, mut events) = mpsc::channel(64);
        let (mut relist, mut tasks, mut sights) = (Bell::default(), JoinSet::new(), Sights::default());
        let backoff = || Backoff::of_watch(fastrand::Rng::with_seed(0));
        let namespace = self.cilium_namespace.as_str();
        let (relist, tasks) = (&mut relist, &mut tasks);
        Lookout { client, cluster, epoch: 0, namespace, reads_ca: true, events: &sender, backoff, resync: RESYNC, relist, tasks }
            .watch_basics();
        let listing = async {
            while sights.lacks_something() {
                match events.recv().await {
                    Some(Event::Sight { take, .. }) => _ = take(&mut sights),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        // What was not listed in time is unknown.
        _ = timeout(self.deadline, listing).await;
        sights
    }

    fn world(&self, mut bindings: Vec<Binding>, visits: Vec<(Examined, Option<Sights>)>) -> (World, Vec<Examined>) {
        let options = Options { cilium_namespace: self.cilium_namespace.clone(), ..Options::default() };
        let mut world = World { options, now: self.now, ..World::default() };
        let (mut leads, mut clusters) = (BTreeMap::new(), Vec::new());
        let mut first: BTreeMap<(String, String), ClusterId> = BTreeMap::new();
        for (mut examined, sights) in visits {
            // Two Secrets of one namespace may lead to the same cluster.
            if let (Some(cluster), Some(uid)) = (&mut examined.cluster, sights.as_ref().and_then(Sights::uid)) {
                *cluster = first.entry((examined.namespace.clone(), uid)).or_insert_with(|| cluster.clone()).clone();
            }
            leads.insert((examined.namespace.clone(), examined.name.clone()), resolution(&examined, sights.as_ref()));
            if let (Some(cluster), Some(sights)) = (&examined.cluster, sights) {
                let remembered = sights.identity();
                world.clusters.insert(cluster.clone(), sights.seen(&self.cilium_namespace, remembered));
            }
            clusters.push(examined);
        }
        for mut binding in bindings.drain(..) {
            let namespace = binding.common.id.namespace.clone();
            let lead = |name: &String| Some((name.clone(), leads.get(&(namespace.clone(), name.clone()))?.clone()));
            binding.common.refs = binding.spec.refs.iter().filter_map(lead).collect();
            world.bindings.insert(binding.common.id.clone(), binding);
        }
        (world, clusters)
    }

    /// The plan after all that it wants dialled was.
    async fn dialled(&self, mut world: World) -> (World, Plan) {
        let plan = mw_core::cilium::plan(&world);
        let dials = plan.dials.into_iter().map(|(link, dial)| async move {
            let fingerprint = dial.fingerprint.clone();
            (link, fingerprint, self.dialler.dial(dial).await)
        });
        for (link, fingerprint, result) in join_all(dials).await {
            let dial = Some(Dialled { fingerprint, at: self.now, outcome: outcome(None, result, self.now) });
            world.evidence.insert(link, Evidence { dial, reader: Seen::Unknown("nobody asked it".to_owned()) });
        }
        let plan = mw_core::cilium::plan(&world);
        (world, plan)
    }
}

fn binding(record: Record) -> Option<Binding> {
    match record.object {
        Object::Binding(binding) => Some(binding),
        Object::Service(_) | Object::Intent(_) => None,
    }
}

fn refs(binding: &Binding) -> Vec<(String, String)> {
    binding.spec.refs.iter().map(|name| (binding.common.id.namespace.clone(), name.clone())).collect()
}

fn resolution(examined: &Examined, sights: Option<&Sights>) -> Resolution {
    if let Err(why) = &examined.credentials {
        return Resolution::Refused(Refusal::Kubeconfig(why.clone()));
    }
    if let Some(cluster) = &examined.cluster {
        return Resolution::Cluster(cluster.clone());
    }
    match (sights.and_then(Sights::silence), &examined.answers) {
        (Some(Silence::Forbidden(why)), _) => Resolution::Refused(Refusal::Forbidden(why)),
        (Some(Silence::Unreachable(why)), _) => Resolution::Unreachable(why),
        (None, Some(Err(failure))) => Resolution::Unreachable(failure.to_string()),
        (None, _) => Resolution::Unreachable("it was not read in time".to_owned()),
    }
}
