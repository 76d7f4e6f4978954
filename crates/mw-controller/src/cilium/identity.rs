//! Merges links of one owner that reach the same cluster. Links of different
//! owners are never merged, whatever their clusters report.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::CaId;
use mw_core::cilium::plan::Link;
use mw_core::cilium::world::Origin;
use mw_core::names::{ClusterId, Owner};

use crate::cilium::engine::Engine;
use crate::cilium::member::Member;
use crate::fleet::{Credentials, Feeds};

/// Links of one owner whose clusters report the same UID.
#[derive(Debug)]
struct Group {
    owner: Owner,
    uid: String,
    private_ca: Option<CaId>,
    /// Sorted by ID.
    links: Vec<ClusterId>,
}

impl Member {
    /// Reports whether the cluster can be read and written through this link now.
    pub(super) fn works(&self) -> bool {
        self.link.live.is_some() && self.link.trouble().is_none() && self.unwanted_since.is_none()
    }

    /// Reports whether nothing has been read through this link and nothing has failed.
    pub(super) fn is_unread(&self) -> bool {
        let comes = matches!(
            self.link.credentials,
            Credentials::Unread(None) | Credentials::Fine | Credentials::Stale(_)
        );
        let feeds = &self.link.feeds;
        comes && self.unwanted_since.is_none() && feeds.is_starting() && feeds.trouble().is_none()
    }

    /// Owner of the credentials.
    pub(super) fn owner(&self) -> Owner {
        let owners: Vec<&str> = self.state.owners.iter().map(String::as_str).collect();
        Owner::from(owners.join(",").as_str())
    }

    /// Private CA of the connection in use, once the connection has identified its
    /// cluster.
    fn proof(&self) -> Option<CaId> {
        let reads = self.works()
            && self.link.feeds.uid().is_some()
            && self.link.feeds.uid() == self.state.uid;
        self.state.in_use.private_ca.clone().filter(|_| reads)
    }

    /// Forgets the cluster that the link no longer reaches.
    pub(super) fn forget(&mut self) {
        (self.state.uid, self.state.remembered) = (None, None);
    }
}

/// Reports whether servers with these CAs can't be the same.
pub(super) fn differ(one: Option<&CaId>, other: Option<&CaId>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

impl Group {
    fn takes(&self, member: &Member, owner: &Owner, uid: &str) -> bool {
        self.owner == *owner
            && self.uid == uid
            && !differ(
                self.private_ca.as_ref(),
                member.state.in_use.private_ca.as_ref(),
            )
    }
}

impl Engine {
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (id, member) in &self.members {
            let Some(uid) = member.state.uid.clone() else {
                continue;
            };
            let owner = member.owner();
            match groups
                .iter_mut()
                .find(|group| group.takes(member, &owner, &uid))
            {
                Some(group) => {
                    group.links.push(id.clone());
                    group.private_ca = group
                        .private_ca
                        .take()
                        .or_else(|| member.state.in_use.private_ca.clone());
                }
                None => groups.push(Group {
                    owner,
                    uid,
                    private_ca: member.state.in_use.private_ca.clone(),
                    links: vec![id.clone()],
                }),
            }
        }
        groups
    }

    /// Names each cluster after its first link and uses the first link that works.
    pub(super) fn settle_links(&mut self) {
        (
            self.state.identities.leads,
            self.state.identities.representatives,
            self.state.world.origins,
        ) = Default::default();
        for group in self.groups() {
            let Group {
                owner,
                uid,
                private_ca: _,
                links,
            } = group;
            let Some(first) = links.first().cloned() else {
                continue;
            };
            let works = |id: &&ClusterId| self.members.get(*id).is_some_and(Member::works);
            let working = links.iter().find(works);
            let private_ca = working.and_then(|id| self.members.get(id)?.proof());
            self.state
                .identities
                .representatives
                .insert(first.clone(), working.unwrap_or(&first).clone());
            self.state.world.origins.insert(
                first.clone(),
                Origin {
                    owner,
                    uid,
                    private_ca,
                },
            );
            self.state
                .identities
                .leads
                .extend(links.into_iter().map(|link| (link, first.clone())));
        }
    }

    /// Returns the cluster of a link if this is the link in use for it.
    pub(super) fn stands_for(&self, link: &ClusterId) -> Option<&ClusterId> {
        self.state
            .identities
            .leads
            .get(link)
            .filter(|cluster| self.state.identities.representatives.get(*cluster) == Some(link))
    }

    /// Drops the evidence for links from or to replaced clusters.
    pub(super) fn forget_evidence(&mut self, replaced: &BTreeSet<ClusterId>) {
        let stays =
            |link: &Link| !replaced.contains(&link.reader) && !replaced.contains(&link.remote);
        self.state.world.evidence.retain(|link, _| stays(link));
        self.state.checks.diallings.retain(|link, _| stays(link));
        self.state
            .checks
            .readings
            .retain(|reader, _| !replaced.contains(reader));
    }
}

/// Cluster of each link, named after the cluster's first link.
pub(super) type Leads = BTreeMap<ClusterId, ClusterId>;
