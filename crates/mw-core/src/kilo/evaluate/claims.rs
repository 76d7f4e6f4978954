//! Keys and Peer names that two meshes want on the same target.

use std::collections::BTreeMap;

use crate::kilo::decide::Note;
use crate::kilo::entry::Entry;
use crate::kilo::evaluate::Evaluation;
use crate::kilo::ownership::Owner;
use crate::kilo::target::Target;
use crate::names::PeerName;
use crate::problem::Reason;

impl Evaluation<'_> {
    /// Two meshes can want the same key or the same Peer name here. The mesh
    /// that already has it keeps it, otherwise the older mesh wins.
    pub(super) fn lost_claims(&self, target: &Target) -> BTreeMap<(usize, PeerName), Note> {
        let mut lost = BTreeMap::new();
        if self.memberships.len() < 2 {
            return lost;
        }
        let mut keys: BTreeMap<_, Vec<(usize, &PeerName)>> = BTreeMap::new();
        let mut names: BTreeMap<_, Vec<(usize, &PeerName)>> = BTreeMap::new();
        for (mesh, source) in self.sources() {
            for base in self.base((mesh, source)) {
                keys.entry(base.key).or_default().push((mesh, &base.name));
                names
                    .entry(&base.name)
                    .or_default()
                    .push((mesh, &base.name));
            }
        }
        for claims in names.values().filter(|claims| claims.len() > 1) {
            let winner = claims
                .iter()
                .find(|(mesh, name)| self.owned(target, *mesh, name).is_some())
                .or(claims.first());
            for (mesh, name) in claims.iter().filter(|claim| Some(*claim) != winner) {
                let note = Note {
                    reason: Reason::PeerNameTaken,
                    about: format!("{name}: another mesh has a Peer with this name here"),
                };
                lost.insert((*mesh, (*name).clone()), note);
            }
        }
        for (key, mut claims) in keys {
            claims.retain(|(mesh, name)| !lost.contains_key(&(*mesh, (*name).clone())));
            let holds = |(mesh, name): &&(usize, &PeerName)| {
                self.owned(target, *mesh, name)
                    .is_some_and(|entry| entry.key() == Some(key))
            };
            let winner = claims.iter().find(holds).or(claims.first()).copied();
            for (mesh, name) in claims.iter().filter(|claim| Some(**claim) != winner) {
                let note = Note {
                    reason: Reason::KeyTaken,
                    about: format!("{name}: another mesh has a Peer with the same public key here"),
                };
                lost.insert((*mesh, (*name).clone()), note);
            }
        }
        lost
    }

    /// The existing Peer of this name, if it belongs to the mesh.
    fn owned<'t>(&self, target: &'t Target, mesh: usize, name: &PeerName) -> Option<&'t Entry> {
        let id = self.meshes().get(mesh).map(|mesh| &mesh.id);
        target
            .entries
            .get(name)
            .filter(|entry| matches!(entry.owner.as_ref(), Owner::Mesh(owner) if Some(owner) == id))
    }
}
