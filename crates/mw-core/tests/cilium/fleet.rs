//! A concise description of a world: clusters, the objects of the three kinds
//! as users write them, and the evidence for links.

use std::collections::BTreeMap;

use mw_core::cilium::object::{Common, ObjectId, Refusal, Resolution};
use mw_core::cilium::plan::Link;
use mw_core::cilium::world::{
    DialFailure, DialOutcome, Dialled, Evidence, Heartbeat, Options, ReaderView, VerifyDial, World,
};
use mw_core::names::{ClusterId, Workspace};
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cluster::Sketch;

/// The input of a story.
#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Fleet {
    now: Option<i64>,
    options: SketchedOptions,
    pub(crate) clusters: BTreeMap<String, Sketch>,
    pub(crate) objects: BTreeMap<String, SketchedObject>,
    pub(crate) links: BTreeMap<String, SketchedLink>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SketchedOptions {
    some_objects_unknown: bool,
    /// Clusters that an unresolved ref may lead to.
    unsettled: Vec<String>,
    /// Clusters with an owner whose workspace is not bound.
    unbound: Vec<String>,
    verify_dial: Option<String>,
    sync_ca_off: bool,
    allow_system_namespaces: bool,
    annotation_prefixes: Vec<String>,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SketchedObject {
    pub(crate) kind: String,
    name: Option<String>,
    workspace: Option<String>,
    created: Option<i64>,
    deleting: Option<i64>,
    touched: Vec<String>,
    was_up: bool,
    /// Resolutions of refs, unless they lead to the cluster of that letter.
    refs: BTreeMap<String, Value>,
    /// The clusters that unresolved refs led to.
    lost: BTreeMap<String, String>,
    /// The UIDs of the clusters to which they led.
    lost_uids: BTreeMap<String, String>,
    elb_ids: BTreeMap<String, String>,
    spec: Value,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SketchedLink {
    /// The failure of the dial of the wanted material.
    fails: Option<String>,
    text: String,
    /// The id that the dial read.
    id: Option<u32>,
    heartbeat: Option<i64>,
    moved: bool,
    absent_since: Option<i64>,
    /// True if the dial used other material.
    stale: bool,
    /// True if there was no dial.
    none: bool,
    reader_ready: Option<bool>,
}

pub(crate) fn id(name: &str) -> ClusterId {
    ClusterId::from(name)
}

impl Fleet {
    pub(crate) fn world(&self) -> World {
        let mut world = World {
            options: self.options.options(),
            now: Timestamp(self.now.unwrap_or(1000)),
            clusters: self
                .clusters
                .iter()
                .map(|(letter, sketch)| (id(letter), sketch.seen(letter)))
                .collect(),
            origins: self
                .clusters
                .iter()
                .map(|(letter, sketch)| (id(letter), sketch.origin(letter)))
                .collect(),
            ..World::default()
        };
        if !self.options.some_objects_unknown {
            let settled = |letter: &&String| !self.options.unsettled.contains(letter);
            world.settled = self
                .clusters
                .keys()
                .filter(settled)
                .map(|letter| id(letter))
                .collect();
            world.listed = self
                .objects
                .values()
                .map(|object| Workspace::from(object.workspace()))
                .collect();
        }
        world.unbound = self
            .options
            .unbound
            .iter()
            .map(|letter| id(letter))
            .collect();
        for (label, object) in &self.objects {
            self.declare(&mut world, label, object);
        }
        world
    }

    fn declare(&self, world: &mut World, label: &str, object: &SketchedObject) {
        let metadata =
            json!({ "name": object.name.as_deref().unwrap_or(label), "namespace": "net" });
        let mut spec = object.spec.clone();
        if let Some(Value::Array(refs)) = spec.get_mut("clusterRefs") {
            refs.iter_mut()
                .filter(|name| name.is_string())
                .for_each(|name| *name = json!({ "name": name.clone() }));
        }
        let value = json!({ "apiVersion": "networking.edge-portal.eu/v1alpha1", "kind": object.kind, "metadata": metadata, "spec": spec });
        let workspace = object.workspace();
        match object.kind.as_str() {
            "ClusterMeshBinding" => {
                let mut of = mw_api::cilium::convert::binding(
                    workspace,
                    &serde_json::from_value(value).unwrap(),
                );
                of.was_up = object.was_up;
                of.spec.elb_ids = object.elb_ids.clone();
                self.fill(&mut of.common, object, &of.spec.refs);
                world.bindings.insert(of.common.id.clone(), of);
            }
            "GlobalService" => {
                let mut of = mw_api::cilium::convert::global_service(
                    workspace,
                    &serde_json::from_value(value).unwrap(),
                );
                self.fill(&mut of.common, object, &[]);
                world.services.insert(of.common.id.clone(), of);
            }
            "ConnectivityIntent" => {
                let mut of = mw_api::cilium::convert::intent(
                    workspace,
                    &serde_json::from_value(value).unwrap(),
                );
                self.fill(&mut of.common, object, &[]);
                world.intents.insert(of.common.id.clone(), of);
            }
            other => panic!("what is a {other}?"),
        }
    }

    fn fill(&self, common: &mut Common, object: &SketchedObject, refs: &[String]) {
        common.created = object.created.map(Timestamp);
        common.deleting = object.deleting.map(Timestamp);
        common.touched = object.touched.clone();
        common.lost = object
            .lost
            .iter()
            .map(|(name, cluster)| (name.clone(), id(cluster)))
            .collect();
        common.lost_uids = object.lost_uids.clone();
        let all = refs
            .iter()
            .chain(&object.touched)
            .chain(self.clusters.keys());
        common.refs = all
            .map(|name| (name.clone(), self.resolution(object, name)))
            .collect();
    }

    fn resolution(&self, object: &SketchedObject, name: &str) -> Resolution {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        match object
            .refs
            .get(name)
            .and_then(Value::as_object)
            .and_then(|of| of.iter().next())
        {
            None if self.clusters.contains_key(name) => Resolution::Cluster(id(name)),
            None => Resolution::Pending("KubernetesCluster not found".to_owned()),
            Some((kind, value)) => match kind.as_str() {
                "cluster" => Resolution::Cluster(id(&text(value))),
                "revoked" => Resolution::Revoked(text(value)),
                "ownerMissing" => Resolution::OwnerMissing(text(value)),
                "pending" => Resolution::Pending(text(value)),
                "unreachable" => Resolution::Unreachable(text(value)),
                "gone" => Resolution::Gone(text(value)),
                "kubeconfig" => Resolution::Refused(Refusal::Kubeconfig(text(value))),
                "forbidden" => Resolution::Refused(Refusal::Forbidden(text(value))),
                "capability" => Resolution::Refused(Refusal::Capability {
                    status: text(value),
                    checked: Some("09:00".to_owned()),
                }),
                other => panic!("where is {other}?"),
            },
        }
    }

    /// Sets the evidence for links, once the dialled material is known.
    pub(crate) fn tell_links(&self, world: &mut World) {
        let dials = mw_core::cilium::plan(world).dials;
        for (link, sketch) in &self.links {
            let (reader, remote) = link.split_once("->").unwrap();
            let link = Link {
                reader: id(reader),
                remote: id(remote),
            };
            let dial = dials.get(&link).filter(|_| !sketch.none);
            let dial = dial.map(|dial| sketch.dialled(world, &dial.fingerprint, dial.cluster_id));
            let reader = match sketch.reader_ready {
                Some(ready) => Seen::Known(ReaderView {
                    ready,
                    at: world.now,
                }),
                None => Seen::Unknown("no metrics".to_owned()),
            };
            world.evidence.insert(link, Evidence { dial, reader });
        }
    }
}

impl SketchedOptions {
    fn options(&self) -> Options {
        let verify_dial = match self.verify_dial.as_deref() {
            None | Some("warn") => VerifyDial::Warn,
            Some("require") => VerifyDial::Require,
            Some("off") => VerifyDial::Off,
            Some(other) => panic!("{other}?"),
        };
        Options {
            verify_dial,
            sync_ca: !self.sync_ca_off,
            allow_system_namespaces: self.allow_system_namespaces,
            annotation_prefixes: self.annotation_prefixes.clone(),
            ..Options::default()
        }
    }
}

impl SketchedObject {
    fn workspace(&self) -> &str {
        self.workspace.as_deref().unwrap_or("w1")
    }

    pub(crate) fn id(&self, label: &str) -> ObjectId {
        ObjectId::new(
            self.workspace(),
            "net",
            self.name.as_deref().unwrap_or(label),
        )
    }
}

impl SketchedLink {
    pub(crate) fn dialled(&self, world: &World, fingerprint: &str, cluster_id: u32) -> Dialled {
        let kind = self.fails.as_deref().map(|kind| match kind {
            "Unreachable" => DialFailure::Unreachable,
            "DNS" => DialFailure::Dns,
            "Address" => DialFailure::Address,
            "TCP" => DialFailure::Tcp,
            "TLS" => DialFailure::Tls,
            "Certificate" => DialFailure::Certificate,
            "Permission" => DialFailure::Permission,
            "Name" => DialFailure::Name,
            other => panic!("{other}?"),
        });
        let heartbeat = match self.absent_since {
            Some(since) => Heartbeat::Absent {
                since: Timestamp(since),
            },
            None => Heartbeat::At {
                time: self.heartbeat.map_or(world.now, Timestamp),
                moved: self.moved.then_some(world.now),
            },
        };
        let outcome = match kind {
            Some(kind) => DialOutcome::Failed {
                kind,
                text: self.text.clone(),
            },
            None => DialOutcome::Read {
                id: self.id.unwrap_or(cluster_id),
                heartbeat,
            },
        };
        let fingerprint = if self.stale {
            "another".to_owned()
        } else {
            fingerprint.to_owned()
        };
        Dialled {
            fingerprint,
            at: world.now,
            outcome,
        }
    }
}

/// RFC 7386.
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let fields = into.as_object_mut().unwrap();
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// Keeps everything written before.
pub(crate) fn carry(before: &World, now: &mut World, letter: &str, changed: bool) {
    let (old, new) = (
        &before.clusters[&id(letter)],
        now.clusters.get_mut(&id(letter)).unwrap(),
    );
    if !changed {
        *new = old.clone();
        return;
    }
    if let (Some(old), Some(new)) = (old.secrets.known(), new.secrets.known_mut()) {
        for (name, secret) in old {
            let into = new.entry(*name).or_default();
            into.written = secret.written;
            secret
                .keys
                .iter()
                .for_each(|(key, held)| _ = into.keys.entry(key.clone()).or_insert(held.clone()));
        }
    }
    if let (Some(Some(old)), Some(Some(new))) = (old.users.known(), new.users.known_mut()) {
        new.text.clone_from(&old.text);
    }
    if let (Some(old), Some(new)) = (old.policies.known(), new.policies.known_mut()) {
        old.iter()
            .for_each(|(key, policy)| _ = new.entry(key.clone()).or_insert(policy.clone()));
    }
    if let (Some(old), Some(new)) = (old.services.known(), new.services.known_mut()) {
        for (name, service) in new.iter_mut() {
            let annotations = old
                .get(name)
                .map(|old| old.annotations.clone())
                .unwrap_or_default();
            annotations
                .into_iter()
                .for_each(|(key, held)| _ = service.annotations.entry(key).or_insert(held));
        }
    }
}
