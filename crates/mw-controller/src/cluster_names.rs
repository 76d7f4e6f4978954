//! Names of clusters in logs and metrics. People know a cluster by its name in a
//! mesh; the engines identify it by its Secret, which is unique.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use mw_core::names::ClusterId;

use crate::fleet::HUB;

/// Names in meshes by cluster. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ClusterNames(Arc<RwLock<BTreeMap<ClusterId, Arc<str>>>>);

impl ClusterNames {
    /// Returns the name to show. A cluster that no mesh has named yet has that of its
    /// Secret.
    pub fn of(&self, id: &ClusterId) -> Arc<str> {
        let named = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned();
        named.unwrap_or_else(|| {
            if id.as_str() == HUB {
                "hub".into()
            } else {
                id.as_str().into()
            }
        })
    }

    /// Takes over names; of several names of a cluster, the first. A cluster that is
    /// no longer named keeps its name until it is forgotten. Returns the former names
    /// of renamed clusters.
    pub fn set(
        &self,
        named: impl Iterator<Item = (ClusterId, String)>,
    ) -> BTreeMap<ClusterId, Arc<str>> {
        let mut first: BTreeMap<ClusterId, String> = BTreeMap::new();
        for (id, name) in named {
            first.entry(id).or_insert(name);
        }
        first.retain(|id, name| *self.of(id) != **name);
        let former = first.keys().map(|id| (id.clone(), self.of(id))).collect();
        let named = first.into_iter().map(|(id, name)| (id, name.into()));
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(named);
        former
    }

    /// Forgets a removed cluster.
    pub fn forget(&self, id: &ClusterId) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[(&str, &str)]) -> Vec<(ClusterId, String)> {
        names
            .iter()
            .map(|(id, name)| (ClusterId::from(*id), (*name).to_owned()))
            .collect()
    }

    #[test]
    fn a_cluster_has_the_name_of_the_first_mesh_until_it_is_forgotten() {
        let (names, us, hub) = (
            ClusterNames::default(),
            ClusterId::from("net/us-kubeconfig"),
            ClusterId::from(HUB),
        );
        assert_eq!(
            (&*names.of(&us), &*names.of(&hub)),
            ("net/us-kubeconfig", "hub")
        );
        let former = names.set(
            named(&[
                ("net/us-kubeconfig", "us"),
                (HUB, "eu"),
                ("net/us-kubeconfig", "america"),
            ])
            .into_iter(),
        );
        assert_eq!((&*names.of(&us), &*names.of(&hub)), ("us", "eu"));
        assert_eq!(former.len(), 2);
        assert_eq!(
            names.set(named(&[("net/us-kubeconfig", "us")]).into_iter()),
            BTreeMap::new()
        );
        let former = names.set(named(&[("net/us-kubeconfig", "america")]).into_iter());
        assert_eq!(former, BTreeMap::from([(us.clone(), "us".into())]));
        assert_eq!(
            &*names.of(&hub),
            "eu",
            "nobody names it, but it is not forgotten"
        );
        names.forget(&us);
        assert_eq!(&*names.of(&us), "net/us-kubeconfig");
    }
}
