//! Meshes that are reconciled, and the meshes that Peers belong to.

use std::collections::BTreeMap;

use crate::kilo::entry::Entry;
use crate::kilo::mesh::{ActiveMesh, Clusters};
use crate::kilo::mesh_state::{MeshMode, MeshState};
use crate::kilo::overlap::{Admission, Applicant, admit};
use crate::kilo::ownership::Register;
use crate::kilo::peer::PeerFacts;
use crate::kilo::peer_history::{CarrierIndex, group};
use crate::kilo::planner::Planner;
use crate::kilo::spec::{Mesh, MeshSpec, Validated, validate};
use crate::names::{ClusterId, ClusterName, MeshId, PeerName};
use crate::problem::Problem;

impl Planner {
    pub(super) fn register_meshes<'a>(&mut self, peers: impl Iterator<Item = &'a PeerFacts>) {
        let meshes = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        self.register = Register::new(self.options.hub.as_deref(), meshes);
        self.register.note_hubs(peers.map(|peer| &peer.labels));
    }

    /// Assigns all Peers to their owners again and replans everything.
    pub(super) fn reassign(&mut self) {
        let mut register = std::mem::take(&mut self.register);
        let known = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, mesh.take_over_hub.as_deref()));
        register = Register::new(register.hub(), known);
        register.note_hubs(
            self.targets
                .values()
                .flat_map(|target| target.entries.values())
                .map(Entry::labels),
        );
        self.register = register;
        self.replan_everything();
    }

    pub(super) fn replan_everything(&mut self) {
        self.form_meshes();
        self.released = self.confirmed_before();
        self.carrier_index = CarrierIndex::default();
        for (id, target) in &mut self.targets {
            target.groups.clear();
            target.strangers.clear();
            target.dirt.all = true;
            let names: Vec<PeerName> = target.entries.keys().cloned().collect();
            for name in names {
                if let Some(entry) = target.entries.get_mut(&name) {
                    entry.owner = self.register.owner(entry.labels());
                }
                let wide = group(target, &self.meshes, &name, true);
                self.carrier_index.put(id, &name, wide);
            }
        }
        for mesh in 0..self.meshes.len() {
            self.plan_mesh(mesh);
        }
    }

    fn form_meshes(&mut self) {
        let validated: BTreeMap<&MeshId, _> = self
            .inputs
            .iter()
            .map(|(id, mesh)| (id, validate(&mesh.spec)))
            .collect();
        let acting = |id: &&MeshId| self.inputs.get(*id).is_some_and(|mesh| !mesh.deleting);
        let mut applicants: Vec<Applicant<'_>> = Vec::new();
        for (id, result) in &validated {
            if let (Ok((spec, _)), Some(mesh)) = (result, self.inputs.get(*id))
                && acting(id)
            {
                let running = mesh.running.as_ref();
                let members = self.proven(&self.members(id, spec));
                applicants.push(Applicant {
                    mesh: id,
                    created: mesh.created,
                    spec,
                    running,
                    recalled: mesh.recalled,
                    members,
                });
            }
        }
        let admissions = admit(&applicants);
        let mut meshes = Vec::new();
        let mut remarks = Vec::new();
        for (id, mesh) in &self.inputs {
            let (mode, said) = self.mode(mesh, validated.get(id), admissions.get(id));
            meshes.push(MeshState {
                id: id.clone(),
                mode,
            });
            remarks.push(said);
        }
        let mut by_age: Vec<usize> = (0..meshes.len()).collect();
        let age = |at: &usize| {
            meshes
                .get(*at)
                .and_then(|mesh| self.inputs.get(&mesh.id))
                .map(|mesh| (mesh.created.is_none(), mesh.created))
        };
        by_age.sort_by_key(|at| (age(at), *at));
        (self.meshes, self.remarks, self.by_age) = (meshes, remarks, by_age);
    }

    fn members(&self, mesh: &MeshId, spec: &MeshSpec) -> BTreeMap<ClusterName, ClusterId> {
        spec.clusters
            .keys()
            .map(|name| (name.clone(), self.cluster_id(mesh, name)))
            .collect()
    }

    /// The ids of the clusters across owners, where proven.
    fn proven(
        &self,
        members: &BTreeMap<ClusterName, ClusterId>,
    ) -> BTreeMap<ClusterName, ClusterId> {
        let proven = |id: &ClusterId| {
            self.links
                .get(id)
                .and_then(|link| link.proven.clone())
                .unwrap_or_else(|| id.clone())
        };
        members
            .iter()
            .map(|(name, id)| (name.clone(), proven(id)))
            .collect()
    }

    fn mode(
        &self,
        mesh: &Mesh,
        validated: Option<&Validated>,
        admission: Option<&Admission>,
    ) -> (MeshMode, Vec<Problem>) {
        if mesh.deleting {
            return (MeshMode::Deleting, Vec::new());
        }
        let (spec, mut remarks) = match validated {
            Some(Ok((spec, remarks))) => (Some(spec), remarks.clone()),
            Some(Err(problems)) => (None, problems.clone()),
            None => (None, Vec::new()),
        };
        let overlaps = admission
            .map(|admission| admission.overlaps.as_slice())
            .unwrap_or_default();
        remarks.extend_from_slice(overlaps);
        let running = mesh
            .running
            .as_ref()
            .filter(|_| !mesh.recalled || overlaps.is_empty());
        let chosen = spec.filter(|_| overlaps.is_empty()).or(running);
        let Some(chosen) = chosen else {
            return (MeshMode::HeldBack, remarks);
        };
        let duplicates = admission
            .map(|admission| admission.duplicates.clone())
            .unwrap_or_default();
        let ids = self.members(&mesh.id, chosen);
        let clusters = Clusters {
            proven: self.proven(&ids),
            ids,
        };
        let active = ActiveMesh::new(
            mesh.id.clone(),
            chosen.clone(),
            &clusters,
            duplicates,
            self.options.hub.as_deref(),
        );
        (MeshMode::Active(Box::new(active)), remarks)
    }
}
