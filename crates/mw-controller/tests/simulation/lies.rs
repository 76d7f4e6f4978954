//! False answers of servers, and hostile owners.

use std::time::Duration;

use http::Method;
use mw_sim::kilo::{Entry, Mesh, Site, key};
use mw_sim::{Cluster, Lie, Settings, Span, Wall};
use serde_json::Value;
use tokio::time::Instant;

use crate::bed::{Bed, NODES, crds};
use crate::oracle::text;

const NAMESPACES: &str = "/api/v1/namespaces";

/// A false answer of a server about one kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Telling {
    pub(crate) cluster: String,
    pub(crate) kind: &'static str,
    pub(crate) how: Untruth,
    pub(crate) lasts: Lasts,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Untruth {
    Empty,
    Truncated {
        percent: u8,
        counted: bool,
    },
    Endless {
        page: usize,
    },
    Frozen,
    Uids {
        of: String,
    },
    Unasked,
    Another {
        of: String,
    },
    /// A copy of the cluster: Nodes with the same names and networks, but other keys
    /// and UIDs; ClusterMeshes and Secrets with other UIDs and without finalizers.
    Double,
    NoDeletes,
    /// Never drawn: long texts cost time.
    Fat {
        bytes: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lasts {
    Requests(u64),
    For(Duration),
    ForEver,
}

impl Telling {
    /// Starts the lie: everything is relisted, and watches are reopened.
    pub(crate) fn begin(&self, bed: &Bed, site: &Site) {
        let server = bed.on(&self.cluster);
        let lie = match &self.how {
            // Leases are read by name.
            Untruth::Empty if self.kind == "leases" => another(empty(&self.cluster), server),
            Untruth::Empty => Lie::Empty,
            Untruth::Truncated { percent, counted } => Lie::Truncated {
                percent: *percent,
                counted: *counted,
            },
            Untruth::Endless { page } => Lie::Endless { page: *page },
            Untruth::Frozen => Lie::Frozen {
                version: server.version(),
            },
            // No other cluster has objects of the kinds that only the hub has.
            Untruth::Uids { of } if *of == self.cluster => Lie::Uids {
                of: copy(server, &self.cluster),
            },
            Untruth::Uids { of } => Lie::Uids {
                of: bed.on(of).clone(),
            },
            Untruth::Unasked => Lie::Unasked,
            Untruth::Another { of } => another(bed.on(of).clone(), server),
            Untruth::Double if self.kind == "nodes" => another(double(site), server),
            Untruth::Double => another(copy(server, &self.cluster), server),
            Untruth::NoDeletes => Lie::NoDeletes,
            Untruth::Fat { bytes } => Lie::Fat { bytes: *bytes },
        };
        let span = match self.lasts {
            Lasts::Requests(count) => Span::Requests(count),
            Lasts::For(duration) => Span::Until(Instant::now() + duration),
            Lasts::ForEver => Span::ForEver,
        };
        bed.script.told.begins(&self.cluster, self.kind);
        bed.script.lies.tell(&self.cluster, self.kind, lie, span);
        server.compact();
        server.hang_up();
    }
}

/// Answers of another cluster. If it knew the version of a watch only as a future one,
/// the watch would be silent, like a frozen one, so it is made to have forgotten it.
fn another(server: Cluster, than: &Cluster) -> Lie {
    if server.version() <= than.version() {
        server.advance_to(than.version() + 1);
        server.compact();
    }
    Lie::Another { server }
}

/// A cluster without objects.
fn empty(name: &str) -> Cluster {
    let settings = Settings {
        name: name.to_owned(),
        seed: u64::MAX,
        wall: Wall::fixed(0),
        managed_fields: false,
    };
    let cluster = Cluster::new(settings);
    crds()
        .iter()
        .for_each(|crd| cluster.install_crd(crd).unwrap());
    cluster
}

/// A copy of the hub, as if restored from an export: its ClusterMeshes and Secrets are
/// new objects.
fn copy(hub: &Cluster, name: &str) -> Cluster {
    let copy = empty(name);
    let create = |collection: &str, object: &Value| {
        copy.call(&Method::POST, collection, "application/json", Some(object));
    };
    for namespace in hub.list(NAMESPACES) {
        create(NAMESPACES, &exported(&namespace));
    }
    for (group, plural) in [
        ("/api/v1", "secrets"),
        ("/apis/kilo.squat.ai/v1alpha1", "clustermeshes"),
    ] {
        for object in hub.list(&format!("{group}/{plural}")) {
            let namespace = text(&object["metadata"]["namespace"]);
            create(
                &format!("{group}/namespaces/{namespace}/{plural}"),
                &exported(&object),
            );
        }
    }
    copy
}

/// An object without what the server set, its status and its finalizers.
fn exported(object: &Value) -> Value {
    let mut exported = object.clone();
    let metadata = &object["metadata"];
    let fields = ["name", "namespace", "labels", "annotations"];
    let kept = fields.map(|field| (field.to_owned(), metadata[field].clone()));
    exported["metadata"] = kept.into_iter().filter(|(_, of)| !of.is_null()).collect();
    _ = exported.as_object_mut().map(|all| all.remove("status"));
    exported
}

/// A cluster that impersonates another one.
fn double(site: &Site) -> Cluster {
    let cluster = empty(&site.name);
    for node in site.nodes.values() {
        let mut node = node.clone();
        node.annotations.insert(
            "key".into(),
            key(&format!("double {} {}", site.name, node.name)),
        );
        cluster.call(
            &http::Method::POST,
            NODES,
            "application/json",
            Some(&node.object()),
        );
    }
    cluster
}

/// An owner who tries to act on another owner's cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hostile {
    pub(crate) attack: Attack,
    pub(crate) victim: String,
    pub(crate) lies: Vec<Telling>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Attack {
    /// Its cluster shows the UIDs of the victim's Nodes.
    CopiedUids,
    /// Its Secret holds the victim's URL and an invalid token.
    StolenUrl,
}

/// Clusters of a hostile owner.
pub(crate) const HOSTILE_SITES: [&str; 2] = ["e1", "e2"];

pub(crate) fn is_hostile(namespace: &str) -> bool {
    namespace.ends_with("hostile")
}

pub(crate) fn hostile_sites() -> Vec<Site> {
    HOSTILE_SITES
        .iter()
        .zip([201, 202])
        .map(|(name, number)| Site::new(name, number, 2))
        .collect()
}

/// Mesh of another owner than the operator's, without the hub.
pub(crate) fn tenant_mesh(namespace: &str, hub: &str, sites: &[&Site]) -> Mesh {
    Mesh {
        namespace: namespace.to_owned(),
        hub: hub.to_owned(),
        ..Mesh::new("mesh", sites)
    }
}

/// Cluster of another team, in one mesh with a shared one.
pub(crate) fn neighbour(hub: &Site, shared: (&Site, &Entry)) -> (Site, Mesh) {
    let site = Site::new("t1", 101, 2);
    let mut mesh = tenant_mesh("team", &hub.name, &[&site, shared.0]);
    // The settings of a cluster are the same in all meshes.
    mesh.entries[1] = shared.1.clone();
    (site, mesh)
}
