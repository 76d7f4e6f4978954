//! Network of one cluster: hosts on a common segment, a pod on each, and an edge router
//! to the other clusters.
//!
//! Site 3 has: hosts 192.168.3.N, reachable from other clusters as 198.18.3.N unless
//! they are hidden behind NAT; pods 10.3.N.0/24 and, with dual stack, `fd00:3:N::/64`;
//! services 172.20.3.0/24. Every host forwards packets for services to its pod, which
//! answers for one of them, like a node with a backend of the service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::{Error, Result};
use crate::net::{Links, Namespace, Route, Wire, WireGuard};

/// WireGuard device of each host, with Kilo's name.
pub const DEVICE: &str = "kilo0";
/// Device of each host to the other hosts and out of the cluster.
pub const UPLINK: &str = "eth0";
const POD_LINK: &str = "pod0";
const FIRST_PORT: u16 = 51_820;

/// Properties of a cluster's network.
#[derive(Debug, Clone, Copy)]
pub struct LanSpec {
    /// Number that determines its networks, so that they are disjoint.
    pub number: u8,
    /// Set if the hosts are behind NAT with one public address: time after which an unused
    /// mapping expires.
    pub hidden: Option<Duration>,
}

#[derive(Debug)]
pub struct Lan {
    spec: LanSpec,
    edge: Namespace,
    links: Links,
}

/// A host with its pod and its WireGuard device.
#[derive(Debug)]
pub struct Host {
    pub name: String,
    pub namespace: Namespace,
    pub links: Links,
    pub pod: Namespace,
    pub device: Arc<WireGuard>,
    pub internal: Ipv4Net,
    /// Public address; `None` behind NAT.
    pub external: Option<Ipv4Addr>,
    pub pod_cidrs: [IpNet; 2],
    /// Addresses of its pod, in both families.
    pub pod_addresses: [IpAddr; 2],
    /// Service address that its pod, like all pods of the cluster, answers for.
    pub service: IpAddr,
    edge: Links,
}

impl Lan {
    pub async fn new(wire: &Wire, spec: LanSpec) -> Result<Self> {
        let edge = Namespace::new()?;
        let links = Links::open(&edge)?;
        let lan = Self { spec, edge, links };
        lan.links.add_bridge("lan").await?;
        lan.links.up("lan").await?;
        lan.links
            .add_address("lan", IpNet::new(lan.gateway().into(), 24).map_err(wrong)?)
            .await?;
        wire.attach(&lan.edge, "wan", lan.public(), spec.hidden)?;
        lan.links.up("wan").await?;
        let out = Route {
            to: default_v4(),
            via: None,
            source: None,
            device: "wan".into(),
        };
        lan.links.replace_route(&out).await?;
        Ok(lan)
    }

    /// Returns the public addresses of this cluster.
    pub fn public(&self) -> Ipv4Net {
        Ipv4Net::new_assert(Ipv4Addr::new(198, 18, self.spec.number, 0), 24)
    }

    fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, self.spec.number, 254)
    }

    /// Adds the host `nN`. Its WireGuard device is down and has no peers.
    pub async fn add_host(&self, at: u8) -> Result<Host> {
        let (site, name) = (self.spec.number, format!("n{at}"));
        let (namespace, pod) = (Namespace::new()?, Namespace::new()?);
        let links = Links::open(&namespace)?;
        links.up("lo").await?;
        let device = WireGuard::new(&namespace, DEVICE, FIRST_PORT + u16::from(at) - 1)?;
        let host = Host {
            name: name.clone(),
            namespace,
            links,
            pod,
            device: Arc::new(device),
            internal: Ipv4Net::new_assert(Ipv4Addr::new(192, 168, site, at), 24),
            external: self
                .spec
                .hidden
                .is_none()
                .then(|| Ipv4Addr::new(198, 18, site, at)),
            pod_cidrs: pod_cidrs(site, at).map_err(wrong)?,
            pod_addresses: pod_addresses(site, at, 2),
            service: Ipv4Addr::new(172, 20, site, 10).into(),
            edge: self.links.clone(),
        };
        self.connect(&host).await?;
        host.connect_pod(site, at).await?;
        Ok(host)
    }

    async fn connect(&self, host: &Host) -> Result<()> {
        self.links
            .add_cable(&host.name, UPLINK, &host.namespace, &host.links)
            .await?;
        self.links.plug(&host.name, "lan").await?;
        host.links.add_address(UPLINK, host.internal.into()).await?;
        if let Some(external) = host.external {
            let all = IpNet::from(IpAddr::from(external));
            host.links.add_address(UPLINK, all).await?;
            let inward = Route {
                to: all,
                via: Some(host.internal.addr().into()),
                source: None,
                device: "lan".into(),
            };
            self.links.replace_route(&inward).await?;
        }
        let source = host.external.map(IpAddr::from);
        let out = Route {
            to: default_v4(),
            via: Some(self.gateway().into()),
            source,
            device: UPLINK.into(),
        };
        host.links.replace_route(&out).await
    }
}

impl Host {
    /// Returns the public endpoint of its WireGuard device.
    pub fn endpoint(&self) -> Option<String> {
        self.external
            .map(|external| format!("{external}:{}", self.device.port()))
    }

    /// Cuts the host off from the network.
    pub async fn cut(&self) -> Result<()> {
        self.edge.down(&self.name).await
    }

    pub async fn mend(&self) -> Result<()> {
        self.edge.up(&self.name).await
    }

    /// Creates a pod in its own namespace, and the service that it answers for.
    async fn connect_pod(&self, site: u8, at: u8) -> Result<()> {
        let links = Links::open(&self.pod)?;
        links.up("lo").await?;
        links.add_address("lo", self.service.into()).await?;
        links
            .add_cable(UPLINK, POD_LINK, &self.namespace, &self.links)
            .await?;
        let gateways = pod_addresses(site, at, 1);
        for ((cidr, gateway), address) in
            self.pod_cidrs.iter().zip(gateways).zip(self.pod_addresses)
        {
            let sized = |address| IpNet::new(address, cidr.prefix_len()).map_err(wrong);
            self.links.add_address(POD_LINK, sized(gateway)?).await?;
            links.add_address(UPLINK, sized(address)?).await?;
            let any = if gateway.is_ipv4() {
                default_v4()
            } else {
                default_v6()
            };
            links
                .replace_route(&Route {
                    to: any,
                    via: Some(gateway),
                    source: None,
                    device: UPLINK.into(),
                })
                .await?;
        }
        let services = IpNet::new(Ipv4Addr::new(172, 20, site, 0).into(), 24).map_err(wrong)?;
        let [backend, _] = self.pod_addresses;
        self.links
            .replace_route(&Route {
                to: services,
                via: Some(backend),
                source: None,
                device: POD_LINK.into(),
            })
            .await
    }
}

fn pod_cidrs(site: u8, at: u8) -> std::result::Result<[IpNet; 2], ipnet::PrefixLenError> {
    let [v4, v6] = pod_addresses(site, at, 0);
    Ok([IpNet::new(v4, 24)?, IpNet::new(v6, 64)?])
}

fn pod_addresses(site: u8, at: u8, last: u8) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::new(10, site, at, last);
    let v6 = Ipv6Addr::new(0xfd00, site.into(), at.into(), 0, 0, 0, 0, last.into());
    [v4.into(), v6.into()]
}

fn default_v4() -> IpNet {
    Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into()
}

fn default_v6() -> IpNet {
    Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into()
}

fn wrong(error: ipnet::PrefixLenError) -> Error {
    Error::network("addresses", error)
}
