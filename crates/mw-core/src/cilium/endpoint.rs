//! The address of a remote's clustermesh-apiserver, and the name under which a
//! reader connects to it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cilium::facts::{ClusterSeen, MeshPort, MeshService};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::membership::Reach;
use crate::cilium::survey::wrong_type;
use crate::cilium::version::{HOST_ALIASES, Version};
use crate::endpoint::{Host, split_host_port};
use crate::names::CiliumName;
use crate::problem::Reason;
use crate::text::{listed, quoted};

const ETCD_PORT: u16 = 2379;
const ETCD_PORT_NAME: &str = "etcd";

/// Addresses, or one name if the load balancer has only a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) hosts: Vec<String>,
    pub(super) is_name: bool,
    pub(super) port: u16,
}

/// The endpoint that is written for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) urls: Vec<String>,
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    /// The host name in the URLs, if it is not the host itself.
    pub(super) name: Option<String>,
    /// True if the name is resolved by aliases in the file itself.
    pub(super) aliased: bool,
}

/// The reader's input to the choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) version: Option<Version>,
    pub(super) host_aliases: &'a BTreeSet<String>,
}

/// The address of the remote. `in_use` reports whether an address was written
/// for a reader before: such a node is kept while it is Ready.
pub(super) fn address(
    remote: &ClusterSeen,
    reach: Reach,
    in_use: &dyn Fn(&str) -> bool,
) -> Result<Address, Finding> {
    let waiting = |text: String| Finding::waiting(Step::ApiServer, Reason::AddressPending, text);
    let service = match (remote.service.known(), remote.service.why_unknown()) {
        (Some(Some(service)), _) => service,
        (_, Some(why)) => {
            return Err(waiting(format!(
                "Service clustermesh-apiserver is not known yet: {why}"
            )));
        }
        _ => {
            return Err(Finding::permanent(
                Step::ApiServer,
                Reason::APIServerNotFound,
                "Service clustermesh-apiserver not found",
            ));
        }
    };
    let port = etcd_port(service)
        .ok_or_else(|| waiting("Service clustermesh-apiserver has no port".to_owned()))?;
    match (reach, service.kind.as_str()) {
        (Reach::LoadBalancer, "LoadBalancer") => balanced(service, port.port),
        (Reach::NodePort, "NodePort" | "LoadBalancer") => {
            let port = port.node_port.ok_or_else(|| {
                waiting("Service clustermesh-apiserver has no nodePort".to_owned())
            })?;
            let host = node(remote, in_use)
                .ok_or_else(|| waiting("no Ready node has an address".to_owned()))?;
            Ok(Address {
                hosts: vec![host],
                is_name: false,
                port,
            })
        }
        (reach, kind) => Err(wrong_type(reach.as_str(), kind)),
    }
}

fn etcd_port(service: &MeshService) -> Option<&MeshPort> {
    let named = service
        .ports
        .iter()
        .find(|port| port.name == ETCD_PORT_NAME);
    named
        .or_else(|| service.ports.iter().find(|port| port.port == ETCD_PORT))
        .or(service.ports.first())
}

fn balanced(service: &MeshService, port: u16) -> Result<Address, Finding> {
    let mut ips: Vec<String> = service
        .ingress_ips
        .iter()
        .filter(|ip| ip.parse::<IpAddr>().is_ok())
        .cloned()
        .collect();
    ips.sort();
    ips.dedup();
    match (
        ips.is_empty(),
        service
            .ingress_hostnames
            .iter()
            .filter_map(|name| host_name(name))
            .min(),
    ) {
        (false, _) => Ok(Address {
            hosts: ips,
            is_name: false,
            port,
        }),
        (true, Some(name)) => Ok(Address {
            hosts: vec![name],
            is_name: true,
            port,
        }),
        (true, None) => Err(Finding::waiting(
            Step::ApiServer,
            Reason::AddressPending,
            "the load balancer of Service clustermesh-apiserver has no address yet",
        )),
    }
}

/// A cluster's status is untrusted and ends up in another cluster's Secret, so
/// only a valid DNS name is accepted.
fn host_name(text: &str) -> Option<String> {
    match split_host_port(&format!("{text}:1")) {
        Ok((Host::Dns(name), _)) => Some(name.into()),
        _ => None,
    }
}

/// The first Ready node by name, preferring a Ready node that is in use.
fn node(remote: &ClusterSeen, in_use: &dyn Fn(&str) -> bool) -> Option<String> {
    let ready = remote.nodes.known()?.values().filter(|node| node.ready);
    let address = |texts: &[String]| {
        texts
            .iter()
            .find(|text| text.parse::<IpAddr>().is_ok())
            .cloned()
    };
    let hosts: Vec<String> = ready
        .filter_map(|node| address(&node.external).or_else(|| address(&node.internal)))
        .collect();
    hosts
        .iter()
        .find(|host| in_use(host))
        .or(hosts.first())
        .cloned()
}

/// The address if the certificate covers it, otherwise the remote's mesh name
/// if the reader can resolve it.
pub(super) fn choose(
    address: &Address,
    certificate: &[String],
    cluster_name: &CiliumName,
    reader: Reader<'_>,
) -> Result<Endpoint, Finding> {
    let mesh_name = format!("{cluster_name}.mesh.cilium.io");
    let covered: Vec<String> = address
        .hosts
        .iter()
        .filter(|host| covers(certificate, host))
        .cloned()
        .collect();
    if covered.len() == address.hosts.len() {
        return Ok(direct(covered, address.port));
    }
    let named = |aliased: bool| Endpoint {
        urls: vec![format!("https://{mesh_name}:{}", address.port)],
        hosts: address.hosts.clone(),
        port: address.port,
        name: Some(mesh_name.clone()),
        aliased,
    };
    let can_alias = !address.is_name
        && reader
            .version
            .is_some_and(|version| version >= HOST_ALIASES);
    if covers(certificate, &mesh_name) {
        if can_alias {
            return Ok(named(true));
        }
        if reader.host_aliases.contains(&mesh_name) {
            return Ok(named(false));
        }
    }
    if covered.is_empty() {
        Err(mismatch(address, certificate, &mesh_name))
    } else {
        Ok(direct(covered, address.port))
    }
}

fn direct(hosts: Vec<String>, port: u16) -> Endpoint {
    let url = |host: &String| {
        if host.contains(':') {
            format!("https://[{host}]:{port}")
        } else {
            format!("https://{host}:{port}")
        }
    };
    Endpoint {
        urls: hosts.iter().map(url).collect(),
        hosts,
        port,
        name: None,
        aliased: false,
    }
}

fn mismatch(address: &Address, certificate: &[String], mesh_name: &str) -> Finding {
    let names: Vec<String> = certificate.iter().map(|name| quoted(name)).collect();
    let text = format!(
        "address {} is not in the server certificate (valid for {}), and the reader can't resolve {mesh_name}",
        listed(&address.hosts, 5),
        listed(&names, 10)
    );
    let hint = format!(
        "issue the certificate for the address (clustermesh.apiserver.tls.auto.server.extraIpAddresses or extraDnsNames; \
         before 1.20 without auto), \
         or give the reader a host alias for {mesh_name}"
    );
    Finding::permanent(Step::Keys, Reason::ServerNameMismatch, text).hint(hint)
}

/// Reports whether a certificate with these names is valid for a host.
fn covers(names: &[String], host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => names.iter().any(|name| name.parse::<IpAddr>() == Ok(ip)),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            let below = host.split_once('.').map(|(_, rest)| rest);
            names
                .iter()
                .map(|name| name.to_ascii_lowercase())
                .any(|name| name == host || name.strip_prefix("*.") == below && below.is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> CiliumName {
        CiliumName::try_from("b").unwrap()
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_certificate_covers_names_wildcards_and_addresses() {
        let names = texts(&["*.mesh.cilium.io", "LB.example", "192.0.2.1", "2001:db8::1"]);
        for yes in [
            "a.mesh.cilium.io",
            "A.Mesh.cilium.io",
            "lb.example",
            "192.0.2.1",
            "2001:db8:0::1",
        ] {
            assert!(covers(&names, yes), "{yes}");
        }
        for no in [
            "mesh.cilium.io",
            "a.b.mesh.cilium.io",
            "192.0.2.2",
            "example",
            "",
        ] {
            assert!(!covers(&names, no), "{no}");
        }
    }

    #[test]
    fn a_load_balancers_name_is_a_name_and_nothing_else() {
        assert_eq!(host_name("LB.example").as_deref(), Some("lb.example"));
        for bad in [
            "",
            "lb.example\ntrusted-ca-file: x",
            "lb example",
            "10.0.0.1",
            "a:b",
            "[::1]",
        ] {
            assert_eq!(host_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_ipv6_address_is_bracketed() {
        let address = Address {
            hosts: texts(&["2001:db8::1"]),
            is_name: false,
            port: 2379,
        };
        let reader = Reader {
            version: None,
            host_aliases: &BTreeSet::new(),
        };
        let endpoint = choose(&address, &texts(&["2001:db8::1"]), &name(), reader).unwrap();
        assert_eq!(
            (endpoint.urls, endpoint.name),
            (texts(&["https://[2001:db8::1]:2379"]), None)
        );
    }

    #[test]
    fn addresses_in_the_certificate_are_used_where_no_name_helps() {
        let address = Address {
            hosts: texts(&["192.0.2.1", "192.0.2.2"]),
            is_name: false,
            port: 1,
        };
        let names = texts(&["192.0.2.2", "*.mesh.cilium.io"]);
        let old = Reader {
            version: Some(Version {
                major: 1,
                minor: 19,
            }),
            host_aliases: &BTreeSet::new(),
        };
        assert_eq!(
            choose(&address, &names, &name(), old).unwrap().urls,
            texts(&["https://192.0.2.2:1"])
        );
        let new = Reader {
            version: Some(HOST_ALIASES),
            ..old
        };
        assert_eq!(
            choose(&address, &names, &name(), new).unwrap().urls,
            texts(&["https://b.mesh.cilium.io:1"])
        );
    }
}
