//! Devices, addresses and routes of one namespace, through netlink.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use futures::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::sync::Mutex;

use crate::error::{Error, Result};
use crate::http::runtime;
use crate::net::Namespace;

/// A route of the main table that was not created by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub to: IpNet,
    pub via: Option<IpAddr>,
    /// Source address of packets of the host itself.
    pub source: Option<IpAddr>,
    pub device: String,
}

/// A netlink connection to one namespace.
#[derive(Debug, Clone)]
pub struct Links {
    handle: Handle,
    /// Serializes dumps: the kernel allows one per connection.
    listing: Arc<Mutex<()>>,
    /// Known device indexes. Devices are never recreated under the same name.
    known: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Links {
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let runtime = runtime()?;
        let (connection, handle, _) = namespace
            .run(|| {
                let _context = runtime.enter();
                rtnetlink::new_connection()
            })
            .map_err(|error| Error::network("connecting to netlink", error))?;
        runtime.spawn(connection);
        Ok(Self {
            handle,
            listing: Arc::default(),
            known: Arc::default(),
        })
    }

    /// Adds a bridge with a fixed MAC address. Otherwise it would use the lowest
    /// address of its ports: when that port is removed, the bridge's address would
    /// change, and packets would be lost until ARP finds the new one.
    pub async fn add_bridge(&self, name: &str) -> Result<()> {
        let bridge = LinkBridge::new(name)
            .address(vec![2, 0, 0, 0, 0, 1])
            .build();
        let added = self.handle.link().add(bridge).execute().await;
        added.map_err(|error| Error::network(format!("adding bridge {name}"), error))
    }

    /// Adds a veth pair: `name` here, `peer` in the other namespace, both up.
    pub async fn add_cable(
        &self,
        name: &str,
        peer: &str,
        other: &Namespace,
        others: &Links,
    ) -> Result<()> {
        let failed = |error| Error::network(format!("adding {name}"), error);
        self.handle
            .link()
            .add(LinkVeth::new(name, peer).build())
            .execute()
            .await
            .map_err(failed)?;
        let away = LinkUnspec::new_with_name(peer)
            .setns_by_fd(other.file().as_raw_fd())
            .build();
        self.handle
            .link()
            .set(away)
            .execute()
            .await
            .map_err(failed)?;
        self.up(name).await?;
        others.up(peer).await
    }

    pub async fn up(&self, name: &str) -> Result<()> {
        self.change(LinkUnspec::new_with_name(name).up().build(), name)
            .await
    }

    /// Sets a device down. The kernel then removes its routes.
    pub async fn down(&self, name: &str) -> Result<()> {
        self.change(LinkUnspec::new_with_name(name).down().build(), name)
            .await
    }

    pub async fn plug(&self, name: &str, bridge: &str) -> Result<()> {
        let bridge = self.index(bridge).await?;
        self.change(
            LinkUnspec::new_with_name(name).controller(bridge).build(),
            name,
        )
        .await
    }

    async fn change(&self, message: LinkMessage, name: &str) -> Result<()> {
        let changed = self.handle.link().set(message).execute().await;
        changed.map_err(|error| Error::network(format!("changing {name}"), error))
    }

    pub async fn add_address(&self, name: &str, address: IpNet) -> Result<()> {
        let index = self.index(name).await?;
        let added = self
            .handle
            .address()
            .add(index, address.addr(), address.prefix_len())
            .replace()
            .execute()
            .await;
        added.map_err(|error| Error::network(format!("adding {address} to {name}"), error))
    }

    /// Sets the only address of a device, except for link-local ones.
    pub async fn set_address(&self, name: &str, address: Option<IpNet>) -> Result<()> {
        let failed = |error| Error::network(format!("addresses of {name}"), error);
        let index = self.index(name).await?;
        let listing = self.listing.lock().await;
        let mut found = std::pin::pin!(
            self.handle
                .address()
                .get()
                .set_link_index_filter(index)
                .execute()
        );
        let mut present = false;
        let mut surplus = Vec::new();
        while let Some(message) = found.try_next().await.map_err(failed)? {
            match address_of(&message) {
                Some(is) if Some(is) == address => present = true,
                Some(_) if message.header.scope != AddressScope::Link => surplus.push(message),
                _ => {}
            }
        }
        drop(listing);
        for message in surplus {
            self.handle
                .address()
                .del(message)
                .execute()
                .await
                .map_err(failed)?;
        }
        match address {
            Some(address) if !present => self.add_address(name, address).await,
            _ => Ok(()),
        }
    }

    /// Sets a route, replacing any other to the same destination.
    pub async fn replace_route(&self, route: &Route) -> Result<()> {
        let message = self.message(route).await?;
        let set = self.handle.route().add(message).replace().execute().await;
        set.map_err(|error| Error::network(format!("setting {route:?}"), error))
    }

    pub async fn delete_route(&self, route: &Route) -> Result<()> {
        let message = self.message(route).await?;
        let deleted = self.handle.route().del(message).execute().await;
        deleted.map_err(|error| Error::network(format!("deleting {route:?}"), error))
    }

    /// Returns the routes that were not created by the kernel.
    pub async fn routes(&self) -> Result<Vec<Route>> {
        let _listing = self.listing.lock().await;
        let names = self.names().await?;
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut filter = RouteMessage::default();
            filter.header.address_family = family;
            let mut found = std::pin::pin!(self.handle.route().get(filter).execute());
            while let Some(message) = found
                .try_next()
                .await
                .map_err(|error| Error::network("listing routes", error))?
            {
                let header = &message.header;
                if header.table == RouteHeader::RT_TABLE_MAIN
                    && header.protocol == RouteProtocol::Static
                {
                    routes.extend(route_of(&message, &names));
                }
            }
        }
        routes.sort();
        Ok(routes)
    }

    async fn message(&self, route: &Route) -> Result<RouteMessage> {
        let index = self.index(&route.device).await?;
        let wrong = |error| Error::network(format!("{route:?}"), error);
        let mut builder = RouteMessageBuilder::<IpAddr>::new().output_interface(index);
        builder = builder
            .destination_prefix(route.to.addr(), route.to.prefix_len())
            .map_err(wrong)?;
        builder = match route.via {
            Some(via) => builder.gateway(via).map_err(wrong)?.onlink(),
            None => builder.scope(if route.to.addr().is_ipv4() {
                RouteScope::Link
            } else {
                RouteScope::Universe
            }),
        };
        if let Some(source) = route.source {
            builder = builder.pref_source(source).map_err(wrong)?;
        }
        Ok(builder.build())
    }

    async fn index(&self, name: &str) -> Result<u32> {
        let mut known = self.known.lock().await;
        if let Some(index) = known.get(name) {
            return Ok(*index);
        }
        let index = self.look_up(name).await?;
        known.insert(name.to_owned(), index);
        Ok(index)
    }

    async fn look_up(&self, name: &str) -> Result<u32> {
        let mut found = std::pin::pin!(
            self.handle
                .link()
                .get()
                .match_name(name.to_owned())
                .execute()
        );
        let link = found
            .try_next()
            .await
            .map_err(|error| Error::network(format!("looking for {name}"), error))?;
        link.map(|link| link.header.index)
            .ok_or_else(|| Error::network(name, "the device does not exist"))
    }

    async fn names(&self) -> Result<Vec<(u32, String)>> {
        let mut found = std::pin::pin!(self.handle.link().get().execute());
        let mut names = Vec::new();
        while let Some(link) = found
            .try_next()
            .await
            .map_err(|error| Error::network("listing devices", error))?
        {
            let name = link
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name.clone()),
                    _ => None,
                });
            names.extend(name.map(|name| (link.header.index, name)));
        }
        Ok(names)
    }
}

fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        });
    IpNet::new(address?, message.header.prefix_len).ok()
}

fn route_of(message: &RouteMessage, names: &[(u32, String)]) -> Option<Route> {
    let any: IpAddr = match message.header.address_family {
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => std::net::Ipv4Addr::UNSPECIFIED.into(),
    };
    let (mut to, mut via, mut source, mut device) = (any, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip(address)?,
            RouteAttribute::Gateway(address) => via = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Oif(index) => {
                device = names
                    .iter()
                    .find(|(at, _)| at == index)
                    .map(|(_, name)| name.clone())
            }
            _ => {}
        }
    }
    Some(Route {
        to: IpNet::new(to, message.header.destination_prefix_length).ok()?,
        via,
        source,
        device: device?,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
