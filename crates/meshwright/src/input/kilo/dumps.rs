//! Dumps of clusters of the Kilo back end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use mw_api::kilo::peer::Peer;
use mw_api::node::Node as KubeNode;
use mw_core::kilo::node::{Node, Nodes};
use mw_core::kilo::peer::PeerFacts;
use mw_core::names::{NodeName, PeerName};
use serde_json::Value as Json;

use crate::input::finding::Finding;
use crate::input::object::{Object, open_all};
use crate::input::register::Register;
use crate::input::source::{Contents, Reader, SourceFile};

/// Objects of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    pub(crate) nodes: Nodes,
    pub(crate) peers: BTreeMap<PeerName, PeerFacts>,
    /// Complete Peers, as JSON.
    pub(crate) objects: BTreeMap<PeerName, Json>,
    /// UID of its Namespace kube-system.
    pub(crate) uid: Option<String>,
    pub(crate) register: Register,
}

/// Dumps by the cluster name given on the command line or in the mesh.
pub(crate) type Fleet = BTreeMap<String, Dump>;

pub(crate) fn load(
    files: &[(String, PathBuf)],
    reader: &mut Reader,
    findings: &mut Vec<Finding>,
) -> Fleet {
    let mut fleet = Fleet::new();
    for (cluster, path) in files {
        let dump = fleet.entry(cluster.clone()).or_default();
        for opened in open_all(
            std::slice::from_ref(path),
            Contents::Plain,
            reader,
            findings,
        ) {
            for object in &opened.objects {
                if let Err(wrong) = dump.take(&opened.file, object) {
                    findings.push(wrong);
                }
            }
        }
    }
    fleet
}

impl Dump {
    /// A dump made from a live snapshot.
    pub(crate) fn of(
        peers: BTreeMap<PeerName, PeerFacts>,
        objects: BTreeMap<PeerName, Json>,
    ) -> Dump {
        Dump {
            peers,
            objects,
            ..Dump::default()
        }
    }

    fn take(&mut self, file: &Rc<SourceFile>, object: &Object) -> Result<(), Finding> {
        match (object.kind.as_str(), object.api_version.as_str()) {
            ("Node", "v1") => {
                let node: KubeNode = self.register.read(file, object, "Node")?;
                let facts = mw_api::kilo::convert::node_facts(&node);
                self.nodes.insert(
                    NodeName::from(facts.name.as_str()),
                    Arc::new(Node::read(facts)),
                );
            }
            (mw_api::kilo::peer::KIND, mw_api::kilo::peer::API_VERSION) => {
                let peer: Peer = self.register.read(file, object, "Peer")?;
                let facts = mw_api::kilo::convert::peer_facts(&peer);
                let name = PeerName::from(facts.name.as_str());
                self.objects.insert(name.clone(), with_type(object));
                self.peers.insert(name, facts);
            }
            ("Namespace", "v1") => {
                if object.name(file)? == "kube-system" {
                    self.register.note(file, object, "Namespace")?;
                    let uid = object
                        .tree
                        .get("metadata")
                        .and_then(|metadata| metadata.get("uid"))
                        .and_then(|uid| uid.text());
                    self.uid = uid.filter(|uid| !uid.is_empty()).map(str::to_owned);
                }
            }
            _ => self.register.ignore(object),
        }
        Ok(())
    }
}

/// Adds apiVersion and kind, which items of a typed list omit.
fn with_type(object: &Object) -> Json {
    let mut json = object.tree.to_json();
    if let Json::Object(fields) = &mut json {
        fields
            .entry("apiVersion")
            .or_insert_with(|| object.api_version.as_str().into());
        fields
            .entry("kind")
            .or_insert_with(|| object.kind.as_str().into());
    }
    json
}
