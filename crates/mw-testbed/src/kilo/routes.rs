//! Routes of a host, and how they are written to its kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::topology::{Segment, Topology};
use crate::error::{Error, Result};
use crate::net::lan::{DEVICE, UPLINK};
use crate::net::{Links, Route};

impl Topology {
    pub(super) fn routes(&self) -> BTreeSet<Route> {
        if self.is_leader {
            self.routes_of_leader()
        } else {
            self.routes_through_leader()
        }
    }

    /// Returns the routes of a non-leader: everything outside of its location is behind
    /// the leader of its location.
    fn routes_through_leader(&self) -> BTreeSet<Route> {
        let own = self
            .segments
            .iter()
            .find(|segment| segment.location == self.location);
        let Some(leader) = own.and_then(|segment| segment.leader_internal) else {
            return BTreeSet::new();
        };
        let through = |to: IpNet| Route {
            to,
            via: Some(leader),
            source: None,
            device: UPLINK.into(),
        };
        let mut routes = BTreeSet::new();
        for segment in &self.segments {
            routes.insert(through(segment.wireguard_ip.into()));
            if segment.location == self.location {
                routes.extend(self.neighbours(segment));
                continue;
            }
            for (_, cidr, internal) in &segment.nodes {
                routes.insert(through(*cidr));
                routes.extend(internal.map(|internal| through(internal.into())));
            }
        }
        routes.extend(
            self.peers
                .iter()
                .flat_map(|peer| &peer.allowed)
                .map(|cidr| through(*cidr)),
        );
        routes
    }

    /// Returns the routes of a leader. Packets of the host itself use its internal
    /// address as source.
    fn routes_of_leader(&self) -> BTreeSet<Route> {
        let tunnelled = |to: IpNet, via: Option<IpAddr>| Route {
            to,
            via,
            source: self.internal,
            device: DEVICE.into(),
        };
        let mut routes = BTreeSet::new();
        for segment in &self.segments {
            if segment.location == self.location {
                routes.extend(self.neighbours(segment));
                continue;
            }
            let via = Some(segment.wireguard_ip);
            let endpoint = self.endpoint_of(segment).map(|endpoint| endpoint.ip());
            for (_, cidr, internal) in &segment.nodes {
                routes.insert(tunnelled(*cidr, via));
                // The endpoint of a tunnel must not be routed into the tunnel. Kilo
                // does not check this for Peers.
                let internal = internal.filter(|internal| Some(*internal) != endpoint);
                routes.extend(internal.map(|internal| tunnelled(internal.into(), via)));
            }
        }
        routes.extend(
            self.peers
                .iter()
                .flat_map(|peer| &peer.allowed)
                .map(|cidr| tunnelled(*cidr, None)),
        );
        routes
    }

    /// Returns routes to the pods of other nodes in the own location.
    fn neighbours(&self, segment: &Segment) -> Vec<Route> {
        let others = segment
            .nodes
            .iter()
            .filter(|(_, _, internal)| internal.is_some() && *internal != self.internal);
        others
            .map(|(_, cidr, internal)| Route {
                to: *cidr,
                via: *internal,
                source: None,
                device: UPLINK.into(),
            })
            .collect()
    }
}

/// Routes that were written.
#[derive(Debug, Default)]
pub(super) struct Table {
    routes: BTreeSet<Route>,
}

impl Table {
    /// Writes routes and stops at the first one that fails, so the following ones are
    /// not written. Kilo's order is random; here IPv6 routes come first, so that
    /// possible failures always happen.
    pub(super) async fn set(&mut self, links: &Links, wanted: &BTreeSet<Route>) -> Result<()> {
        let existing = links.routes().await?;
        for route in self.routes.clone().difference(wanted) {
            // The kernel removes routes together with the last address of their device.
            if existing.contains(route) {
                self.delete(links, route).await?;
            }
            self.routes.remove(route);
        }
        for route in wanted
            .iter()
            .rev()
            .filter(|route| !existing.contains(route))
        {
            links.replace_route(route).await?;
            self.routes.insert(route.clone());
        }
        Ok(())
    }

    pub(super) async fn clear(&mut self, links: &Links) -> Result<()> {
        self.set(links, &BTreeSet::new()).await
    }

    /// Deletes a route. One that the kernel already removed is not an error.
    async fn delete(&self, links: &Links, route: &Route) -> Result<()> {
        match links.delete_route(route).await {
            Err(Error::Network { operation, reason }) if !reason.contains("No such process") => {
                Err(Error::Network { operation, reason })
            }
            _ => Ok(()),
        }
    }
}
