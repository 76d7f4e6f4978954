//! One link, from a reader to a remote: whether its keys may be written, and
//! whether it is known to work.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::endpoint::{Address, address};
use crate::cilium::facts::{ClusterSeen, Held};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::identity::Identities;
use crate::cilium::material::{Key, Material, Remote, material};
use crate::cilium::membership::{Mesh, Reach};
use crate::cilium::object::ObjectId;
use crate::cilium::peer_file;
use crate::cilium::plan::{Dial, Link};
use crate::cilium::remote_users;
use crate::cilium::secret::SecretBytes;
use crate::cilium::verify::{Evident, judge, may_write};
use crate::cilium::world::World;
use crate::names::{CiliumName, ClusterId};
use crate::problem::Reason;

#[derive(Debug)]
pub(super) struct LinkPlan {
    /// What the reader's Secrets must hold; nothing where what is there stays.
    pub(super) keys: Option<BTreeMap<Key, SecretBytes>>,
    pub(super) dial: Option<Dial>,
    pub(super) evident: Evident,
    /// To be told at the reader.
    pub(super) findings: Vec<Finding>,
    /// The keys stand in the reader's Secrets as they are wanted.
    pub(super) in_place: bool,
    /// The etcd user that the remote must list for them.
    pub(super) user: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) plans: BTreeMap<Link, LinkPlan>,
    /// Where a remote is reached, by what was asked for.
    pub(super) addresses: BTreeMap<(ClusterId, Reach), Result<Address, Finding>>,
    /// Remotes that an older binding reaches otherwise than this one wants.
    pub(super) conflicts: BTreeMap<ObjectId, BTreeSet<ClusterId>>,
}

pub(super) fn plan_links(world: &World, meshes: &[Mesh<'_>], identities: &Identities) -> Links {
    let mut links = Links::default();
    let mut settled: BTreeMap<Link, Reach> = BTreeMap::new();
    for (rank, mesh) in meshes.iter().enumerate() {
        for remote in mesh.members() {
            let at = (remote.clone(), mesh.reach);
            links.addresses.entry(at).or_insert_with(|| remote_address(world, meshes, identities, remote, mesh.reach));
        }
        for (reader, remote) in pairs(mesh) {
            let link = Link { reader: reader.clone(), remote: remote.clone() };
            match settled.get(&link) {
                None => {
                    let plan = plan_link(world, identities, &link, rank, links.addresses.get(&(remote.clone(), mesh.reach)));
                    links.plans.insert(link.clone(), plan);
                    settled.insert(link, mesh.reach);
                }
                Some(reach) if links.differ(remote, *reach, mesh.reach) => {
                    links.conflicts.entry(mesh.binding.common.id.clone()).or_default().insert(remote.clone());
                }
                Some(_) => {}
            }
        }
    }
    links
}

impl Links {
    /// Whether two ways to reach a remote lead to different addresses.
    fn differ(&self, remote: &ClusterId, one: Reach, other: Reach) -> bool {
        let address = |reach: Reach| self.addresses.get(&(remote.clone(), reach)).and_then(|found| found.as_ref().ok());
        one != other && address(one) != address(other)
    }
}

pub(super) fn pairs<'a>(mesh: &Mesh<'a>) -> Vec<(&'a ClusterId, &'a ClusterId)> {
    let members = mesh.members();
    let with_all = |reader: &&'a ClusterId| {
        let reader = *reader;
        members.iter().filter(move |remote| **remote != reader).map(move |remote| (reader, *remote)).collect::<Vec<_>>()
    };
    members.iter().flat_map(with_all).collect()
}

fn remote_address(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    remote: &ClusterId,
    reach: Reach,
) -> Result<Address, Finding> {
    let Some(seen) = world.clusters.get(remote) else {
        return Err(Finding::waiting(Step::ApiServer, Reason::AddressPending, "nothing was seen of it yet"));
    };
    let name = identities.name(remote);
    let in_use = |address: &str| {
        // Strangers' keys say nothing of a cluster that only has the same name.
        let readers: BTreeSet<&ClusterId> = meshes.iter().map(Mesh::members).filter(|of| of.contains(remote)).flatten().collect();
        let secrets = readers.into_iter().filter_map(|reader| world.clusters.get(reader)?.secrets.known()).flat_map(BTreeMap::values);
        let mut keys = secrets.filter_map(|secret| secret.keys.get(name?.as_str())).filter(|key| key.is_ours());
        keys.any(|key| peer_file::mentions(&key.value, address))
    };
    address(seen, reach, &in_use)
}

/// `rank` is that of the oldest binding that wants the link.
fn plan_link(world: &World, identities: &Identities, link: &Link, rank: usize, address: Option<&Result<Address, Finding>>) -> LinkPlan {
    let nothing =
        |findings: Vec<Finding>, evident: Evident| LinkPlan { keys: None, dial: None, evident, findings, in_place: false, user: None };
    let Some(reader) = world.clusters.get(&link.reader) else { return nothing(Vec::new(), Evident::Not) };
    let planned = wanted(world, identities, link, reader, address);
    let evidence = world.evidence.get(link);
    let has_key = identities.name(&link.remote).is_some_and(|name| has_key(reader, name));
    match planned {
        // What it needs is not known: only the reader itself can say that it works.
        Ok(None) => nothing(Vec::new(), judge(None, has_key, evidence, world).0),
        Err(finding) => nothing(vec![finding], judge(None, has_key, evidence, world).0),
        Ok(Some(Material { keys, dial, user })) => {
            let in_place = keys.iter().all(|(key, bytes)| held(reader, key).is_some_and(|held| held.value == *bytes));
            let shown = in_place.then_some(&dial);
            let (evident, mut findings) = judge(shown, has_key, evidence, world);
            let clashes = identities.clashes(&link.reader, rank) || identities.clashes(&link.remote, rank);
            let refused = may_write(&dial, evidence, world.options.verify_dial).err();
            // A key is known by its remote's name, so one of that name may lead to the other.
            let is_its = has_key && !identities.shares_name(&link.remote, rank);
            let writes = refused.is_none() && (is_its || !clashes);
            findings.extend(refused.flatten().filter(|_| !matches!(evident, Evident::Verified(_))));
            findings.extend(foreign(reader, &keys, &evident));
            if let (Some(user), Some(remote)) = (&user, world.clusters.get(&link.remote)) {
                remote_users::explain(&mut findings, user, remote, &link.remote);
            }
            let dial = Some(dial).filter(|_| world.options.verify_dial != crate::cilium::world::VerifyDial::Off);
            LinkPlan { keys: Some(keys).filter(|_| writes), dial, evident, findings, in_place, user }
        }
    }
}

fn wanted(
    world: &World,
    identities: &Identities,
    link: &Link,
    reader: &ClusterSeen,
    address: Option<&Result<Address, Finding>>,
) -> Result<Option<Material>, Finding> {
    let remote = world.clusters.get(&link.remote).filter(|remote| remote.silent.is_none());
    // A remote without Cilium or its clustermesh-apiserver is nothing to connect to.
    let runs = |remote: &&ClusterSeen| matches!((remote.agents.known(), remote.apiserver.known()), (Some(Some(_)), Some(Some(_))));
    let remote = remote.filter(runs);
    let certificates = remote.and_then(|remote| remote.certificates.known());
    let cluster_users = remote.and_then(|remote| remote.apiserver.known()?.as_ref()).is_some_and(|server| server.cluster_users);
    let (Some((name, id)), Some(certificates), Some(Ok(address))) = (identities.full(&link.remote), certificates, address) else {
        return Ok(None);
    };
    // A reader whose own identity is not complete can't take part.
    if identities.full(&link.reader).is_none() {
        return Ok(None);
    }
    material(reader, Remote { name, id, certificates, cluster_users, address }, &world.options.cilium_namespace)
}

fn held<'a>(reader: &'a ClusterSeen, (secret, key): &Key) -> Option<&'a Held<SecretBytes>> {
    reader.secrets.known()?.get(secret)?.keys.get(key)
}

fn has_key(reader: &ClusterSeen, name: &CiliumName) -> bool {
    reader.secrets.known().is_some_and(|secrets| secrets.values().any(|secret| secret.keys.contains_key(name.as_str())))
}

/// Keys that somebody else holds with other bytes.
fn foreign(reader: &ClusterSeen, keys: &BTreeMap<Key, SecretBytes>, evident: &Evident) -> Option<Finding> {
    let taken = |(key, bytes): (&Key, &SecretBytes)| {
        let held = held(reader, key)?;
        (held.value != *bytes && !held.is_ours_alone()).then(|| (key.clone(), held.others().join(", ")))
    };
    let ((secret, key), managers) = keys.iter().find_map(taken)?;
    let by = if managers.is_empty() { "somebody else".to_owned() } else { managers };
    Some(match evident {
        Evident::Verified(_) => Finding::remark(Step::Keys, Reason::KeyOwnedByOther, format!("managed by {by}")),
        _ => {
            let text = format!("key {key} of Secret {} is managed by {by} and holds something else", secret.as_str());
            Finding::permanent(Step::Keys, Reason::KeyOwnedByOther, text).hint("remove that key there, or leave the pair to its manager")
        }
    })
}
