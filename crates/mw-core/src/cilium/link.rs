//! One link, from a reader to a remote: whether its keys may be written, and
//! whether it is verified.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::endpoint::{Address, address};
use crate::cilium::facts::{ClusterSeen, Held};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::foreign_keys::{self, Foreign, Named};
use crate::cilium::identity::Identities;
use crate::cilium::material::{Key, Material, Remote, material};
use crate::cilium::membership::{Mesh, Reach};
use crate::cilium::object::ObjectId;
use crate::cilium::peer_file;
use crate::cilium::plan::{Dial, Link};
use crate::cilium::remote_users;
use crate::cilium::secret::SecretBytes;
use crate::cilium::verify::{Evident, judge, may_write};
use crate::cilium::world::{VerifyDial, World};
use crate::names::{CiliumName, ClusterId};
use crate::problem::Reason;

#[derive(Debug)]
pub(super) struct LinkPlan {
    /// The wanted keys of the reader's Secrets; `None` if the present ones
    /// stay.
    pub(super) keys: Option<BTreeMap<Key, SecretBytes>>,
    pub(super) dial: Option<Dial>,
    pub(super) evident: Evident,
    /// Findings to report at the reader.
    pub(super) findings: Vec<Finding>,
    /// True if the reader's Secrets hold the wanted keys.
    pub(super) in_place: bool,
    /// The etcd user that the remote must list.
    pub(super) user: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) plans: BTreeMap<Link, LinkPlan>,
    /// The address of each remote, by service type.
    pub(super) addresses: BTreeMap<(ClusterId, Reach), Result<Address, Finding>>,
    /// Remotes for which an older binding uses a different service type.
    pub(super) conflicts: BTreeMap<ObjectId, BTreeSet<ClusterId>>,
}

pub(super) fn plan_links(world: &World, meshes: &[Mesh<'_>], identities: &Identities) -> Links {
    let mut links = Links::default();
    let mut settled: BTreeMap<Link, Reach> = BTreeMap::new();
    for (rank, mesh) in meshes.iter().enumerate() {
        for remote in mesh.members() {
            let at = (remote.clone(), mesh.reach);
            links
                .addresses
                .entry(at)
                .or_insert_with(|| remote_address(world, meshes, identities, remote, mesh.reach));
        }
        for (reader, remote) in pairs(mesh) {
            let link = Link {
                reader: reader.clone(),
                remote: remote.clone(),
            };
            match settled.get(&link) {
                None => {
                    let plan = plan_link(
                        world,
                        identities,
                        &link,
                        rank,
                        links.addresses.get(&(remote.clone(), mesh.reach)),
                    );
                    links.plans.insert(link.clone(), plan);
                    settled.insert(link, mesh.reach);
                }
                Some(reach) if links.differ(remote, *reach, mesh.reach) => {
                    links
                        .conflicts
                        .entry(mesh.binding.common.id.clone())
                        .or_default()
                        .insert(remote.clone());
                }
                Some(_) => {}
            }
        }
    }
    links
}

impl Links {
    /// Reports whether two service types result in different addresses.
    fn differ(&self, remote: &ClusterId, one: Reach, other: Reach) -> bool {
        let address = |reach: Reach| {
            self.addresses
                .get(&(remote.clone(), reach))
                .and_then(|found| found.as_ref().ok())
        };
        one != other && address(one) != address(other)
    }
}

pub(super) fn pairs<'a>(mesh: &Mesh<'a>) -> Vec<(&'a ClusterId, &'a ClusterId)> {
    let members = mesh.members();
    let mut pairs = Vec::new();
    for reader in &members {
        let remotes = members.iter().filter(|remote| *remote != reader);
        pairs.extend(remotes.map(|remote| (*reader, *remote)));
    }
    pairs
}

fn remote_address(
    world: &World,
    meshes: &[Mesh<'_>],
    identities: &Identities,
    remote: &ClusterId,
    reach: Reach,
) -> Result<Address, Finding> {
    let Some(seen) = world.clusters.get(remote) else {
        return Err(Finding::waiting(
            Step::ApiServer,
            Reason::AddressPending,
            "not observed yet",
        ));
    };
    let name = identities.name(remote);
    address(seen, reach, &|address| {
        name.is_some_and(|name| is_in_use(world, meshes, remote, name, address))
    })
}

/// Reports whether a key of ours leads to a remote at this address.
fn is_in_use(
    world: &World,
    meshes: &[Mesh<'_>],
    remote: &ClusterId,
    name: &CiliumName,
    address: &str,
) -> bool {
    // Keys of other tenants say nothing about a cluster that only has the same
    // name.
    let readers: BTreeSet<&ClusterId> = meshes
        .iter()
        .map(Mesh::members)
        .filter(|of| of.contains(remote))
        .flatten()
        .collect();
    readers
        .into_iter()
        .filter_map(|reader| world.clusters.get(reader)?.secrets.known())
        .flat_map(BTreeMap::values)
        .filter_map(|secret| secret.keys.get(name.as_str()))
        .filter(|key| key.is_ours())
        .any(|key| peer_file::mentions(&key.value, address))
}

/// `rank` is the rank of the oldest binding that wants the link.
fn plan_link(
    world: &World,
    identities: &Identities,
    link: &Link,
    rank: usize,
    address: Option<&Result<Address, Finding>>,
) -> LinkPlan {
    let nothing = |findings: Vec<Finding>, evident: Evident| LinkPlan {
        keys: None,
        dial: None,
        evident,
        findings,
        in_place: false,
        user: None,
    };
    let Some(reader) = world.clusters.get(&link.reader) else {
        return nothing(Vec::new(), Evident::Not);
    };
    let planned = wanted(world, identities, link, reader, address);
    let evidence = world.evidence.get(link);
    let has_key = identities
        .name(&link.remote)
        .is_some_and(|name| has_key(reader, name));
    match planned {
        // The material is not known: only the reader itself can report that the
        // link works.
        Ok(None) => nothing(Vec::new(), judge(None, has_key, evidence, world).0),
        Err(finding) => nothing(vec![finding], judge(None, has_key, evidence, world).0),
        Ok(Some(wanted)) => {
            let clashes =
                identities.clashes(&link.reader, rank) || identities.clashes(&link.remote, rank);
            // Keys are named after the remote, so a key of that name may lead to
            // the other cluster.
            let is_its = has_key && !identities.shares_name(&link.remote, rank);
            judged(world, link, reader, wanted, has_key, is_its || !clashes)
        }
    }
}

/// A link with known keys: the wanted ones or those of another manager.
fn judged(
    world: &World,
    link: &Link,
    reader: &ClusterSeen,
    wanted: Wanted,
    has_key: bool,
    may_have_keys: bool,
) -> LinkPlan {
    let Wanted {
        material,
        refused,
        foreign,
    } = wanted;
    // Without it, all other keys of the link stay too.
    let is_known = material.is_some();
    let (keys, dial, user) = material.map_or((BTreeMap::new(), None, None), |of| {
        (of.keys, Some(of.dial), of.user)
    });
    let keys = foreign
        .as_ref()
        .map_or(keys, |foreign| foreign.keys.clone());
    let standing = foreign.as_ref().and_then(|foreign| foreign.dial.clone());
    // A client certificate of another manager may be for another user.
    let is_same = |standing: &Dial| {
        dial.as_ref()
            .is_some_and(|dial| dial.files.certificate == standing.files.certificate)
    };
    let user = user.filter(|_| standing.as_ref().is_none_or(is_same));
    let dial = standing.or(dial);
    let evidence = world.evidence.get(link);
    let in_place = keys
        .iter()
        .all(|(key, bytes)| held(reader, key).is_some_and(|held| held.value == *bytes));
    let usable = foreign
        .as_ref()
        .is_none_or(|foreign| foreign.flaw.is_none());
    let (evident, mut findings) = judge(
        dial.as_ref().filter(|_| in_place && usable),
        has_key,
        evidence,
        world,
    );
    let unwritten = dial
        .as_ref()
        .map_or(Err(None), |dial| {
            may_write(dial, evidence, world.options.verify_dial)
        })
        .err();
    let writes = unwritten.is_none() && may_have_keys;
    let is_verified = matches!(evident, Evident::Verified(_));
    match &foreign {
        None => findings.extend(unwritten.flatten().filter(|_| !is_verified)),
        Some(foreign) => findings.extend(foreign.finding(&evident, &findings)),
    }
    findings.extend(refused.filter(|_| !is_verified));
    if let (Some(user), Some(remote)) = (&user, world.clusters.get(&link.remote)) {
        remote_users::explain(&mut findings, user, remote, &link.remote);
    }
    let dial = dial.filter(|_| world.options.verify_dial != VerifyDial::Off);
    LinkPlan {
        keys: Some(keys).filter(|_| writes && is_known),
        dial,
        evident,
        findings,
        in_place,
        user,
    }
}

/// The material of a link, and the keys of another manager.
struct Wanted {
    /// `None` if it is not known, or if `refused` says why there is none.
    material: Option<Material>,
    refused: Option<Finding>,
    foreign: Option<Foreign>,
}

fn wanted(
    world: &World,
    identities: &Identities,
    link: &Link,
    reader: &ClusterSeen,
    address: Option<&Result<Address, Finding>>,
) -> Result<Option<Wanted>, Finding> {
    // A remote without Cilium or clustermesh-apiserver has nothing to connect
    // to.
    let runs = |remote: &&ClusterSeen| {
        matches!(
            (remote.agents.known(), remote.apiserver.known()),
            (Some(Some(_)), Some(Some(_)))
        )
    };
    let remote = world
        .clusters
        .get(&link.remote)
        .filter(|remote| remote.silent.is_none())
        .filter(runs);
    // A reader whose identity is incomplete can't connect.
    let (Some(seen), Some((name, id)), Some(_)) = (
        remote,
        identities.full(&link.remote),
        identities.full(&link.reader),
    ) else {
        return Ok(None);
    };
    let namespace = &world.options.cilium_namespace;
    let cluster_users = seen
        .apiserver
        .known()
        .and_then(Option::as_ref)
        .is_some_and(|server| server.cluster_users);
    let address = address.and_then(|address| address.as_ref().ok());
    let made = match (seen.certificates.known(), address) {
        (Some(certificates), Some(address)) => material(
            reader,
            Remote {
                name,
                id,
                certificates,
                cluster_users,
                address,
            },
            namespace,
        ),
        _ => Ok(None),
    };
    let known = made.as_ref().ok().and_then(Option::as_ref);
    let foreign = foreign_keys::find(reader, Named { name, id, address }, known, namespace);
    match (made, foreign) {
        (Ok(None), None) => Ok(None),
        (Err(finding), None) => Err(finding),
        (Ok(material), foreign) => Ok(Some(Wanted {
            material,
            refused: None,
            foreign,
        })),
        (Err(finding), foreign) => Ok(Some(Wanted {
            material: None,
            refused: Some(finding),
            foreign,
        })),
    }
}

fn held<'a>(reader: &'a ClusterSeen, (secret, key): &Key) -> Option<&'a Held<SecretBytes>> {
    reader.secrets.known()?.get(secret)?.keys.get(key)
}

fn has_key(reader: &ClusterSeen, name: &CiliumName) -> bool {
    reader.secrets.known().is_some_and(|secrets| {
        secrets
            .values()
            .any(|secret| secret.keys.contains_key(name.as_str()))
    })
}
