//! False answers of servers, and hostile owners.

use std::time::Duration;

use mw_sim::kilo::{Entry, Mesh, PEER_CRD, Site, key};
use mw_sim::{Cluster, Lie, Settings, Span, Wall};
use tokio::time::Instant;

use crate::bed::{Bed, NODES};

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
    /// Nodes of a cluster with the same names and networks, but other keys and UIDs.
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
            Untruth::Empty => Lie::Empty,
            Untruth::Truncated { percent, counted } => Lie::Truncated {
                percent: *percent,
                counted: *counted,
            },
            Untruth::Endless { page } => Lie::Endless { page: *page },
            Untruth::Frozen => Lie::Frozen {
                version: server.version(),
            },
            Untruth::Uids { of } => Lie::Uids {
                of: bed.on(of).clone(),
            },
            Untruth::Unasked => Lie::Unasked,
            Untruth::Another { of } => another(bed.on(of).clone(), server),
            Untruth::Double => another(double(site), server),
            Untruth::NoDeletes => Lie::NoDeletes,
            Untruth::Fat { bytes } => Lie::Fat { bytes: *bytes },
        };
        let span = match self.lasts {
            Lasts::Requests(count) => Span::Requests(count),
            Lasts::For(duration) => Span::Until(Instant::now() + duration),
            Lasts::ForEver => Span::ForEver,
        };
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

/// A cluster that impersonates another one.
fn double(site: &Site) -> Cluster {
    let settings = Settings {
        name: site.name.clone(),
        seed: u64::MAX,
        wall: Wall::fixed(0),
        managed_fields: false,
    };
    let cluster = Cluster::new(settings);
    cluster
        .install_crd(&serde_saphyr::from_str(PEER_CRD).unwrap())
        .unwrap();
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
