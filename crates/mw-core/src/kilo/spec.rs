//! The spec of a ClusterMesh and its validation. After `validate`, the raw form
//! is not used again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cidr::{Cidr, Family, WrittenCidr};
use crate::kilo::guard::HeldLine;
use crate::kilo::node::EndpointFrom;
use crate::names::{ClusterName, MeshId, NodeName};
use crate::problem::{Problem, Reason};
use crate::text::quoted;
use crate::time::Timestamp;

/// A ClusterMesh on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// Its namespace and name.
    pub id: MeshId,
    /// The creation time: the older mesh wins conflicts.
    pub created: Option<Timestamp>,
    /// True if it has a deletion timestamp.
    pub deleting: bool,
    /// The hash with which the user confirmed held deletes.
    pub confirm_deletes: Option<String>,
    /// Changes held by the previous plan. Deletes stay held until they are
    /// confirmed or explained: Peers that are created meanwhile must not lower
    /// their percentage.
    pub held: BTreeSet<HeldLine>,
    /// The anchors of the previous plan. They count if no Peer shows the anchor
    /// any more, e.g. between a delete and the following write.
    pub anchors: BTreeMap<ClusterName, NodeName>,
    /// The UID of a former hub whose Peers this mesh takes over.
    pub take_over_hub: Option<String>,
    /// The spec as declared, unvalidated.
    pub spec: RawSpec,
    /// The last spec that was reconciled. It stays in effect if `spec` overlaps
    /// with another mesh.
    pub running: Option<MeshSpec>,
    /// True if `running` was read from the status, not decided by this process.
    pub recalled: bool,
}

/// The spec of a ClusterMesh as declared. [`validate`] turns it into a
/// [`MeshSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawSpec {
    /// The members, in the declared order.
    pub clusters: Vec<RawCluster>,
    /// A duration such as `10m`; `None` for the default.
    pub cleanup_timeout: Option<String>,
    /// Percentage from 0 to 100; `None` for the default.
    pub max_delete_percent: Option<i64>,
}

/// A member as declared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawCluster {
    /// The name in the mesh.
    pub name: String,
    /// True if the member is the hub itself.
    pub local: bool,
    /// The Secret with a kubeconfig; required unless `local`.
    pub kubeconfig_secret: Option<SecretRef>,
    /// Networks of pods; `None` in the flat form.
    pub pod_cidrs: Option<Vec<String>>,
    /// Network of WireGuard addresses; `None` in the flat form.
    pub wireguard_cidr: Option<String>,
    /// Network of Services.
    pub service_cidr: Option<String>,
    /// Other networks behind the cluster's nodes.
    pub additional_cidrs: Option<Vec<String>>,
    /// The flat form: one list instead of the four fields above.
    pub allowed_networks: Option<Vec<String>>,
    /// The port for an ExternalIP; `None` for the default.
    pub wireguard_port: Option<i64>,
    /// Interval in seconds; `None` or 0 for no keepalives.
    pub persistent_keepalive: Option<i64>,
    /// The Node label that names a location; `None` for the default.
    pub topology_label: Option<String>,
    /// The name of an [`EndpointFrom`]; `None` for the default.
    pub endpoint_from: Option<String>,
}

/// A Secret in the namespace of the ClusterMesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRef {
    /// The Secret's name.
    pub name: String,
    /// The key in its data; `None` to look for the common ones.
    pub key: Option<String>,
}

/// A valid spec, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSpec {
    /// The members by name.
    pub clusters: BTreeMap<ClusterName, ClusterSpec>,
    /// Time after which a deleted mesh stops waiting for a cluster that does
    /// not answer.
    pub cleanup_timeout_seconds: u64,
    /// Share of a source's Peers on a target that may be deleted without a
    /// known reason, from 0 to 100.
    pub max_delete_percent: u8,
}

/// A valid member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Position in `spec.clusters`, used in messages.
    pub index: usize,
    /// True if the member is the hub itself.
    pub local: bool,
    /// The Secret with a kubeconfig; `None` if `local`.
    pub kubeconfig_secret: Option<SecretRef>,
    /// The networks that other clusters may route to it.
    pub networks: Networks,
    /// The port of endpoints made of an ExternalIP.
    pub wireguard_port: u16,
    /// Interval in seconds; 0 for no keepalives.
    pub keepalive: u16,
    /// The Node label that names a location.
    pub topology_label: String,
    /// Policy for endpoints that Kilo detected.
    pub endpoint_from: EndpointFrom,
}

/// Networks that a cluster may route, in one of the two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Networks {
    /// One field for each kind of network.
    Typed {
        /// Pod CIDRs of nodes must be inside one of these.
        pods: Vec<Cidr>,
        /// WireGuard addresses of nodes must be inside.
        wireguard: Cidr,
        /// Carried by the anchor as a whole.
        service: Option<Cidr>,
        /// Carried by the anchor as a whole. Addresses of nodes inside get a
        /// host route of their own.
        additional: Vec<Cidr>,
    },
    /// One list for all kinds of networks.
    Flat(Vec<Cidr>),
}

/// Kilo's default.
pub const DEFAULT_WIREGUARD_PORT: u16 = 51820;
/// Kilo's default.
pub const DEFAULT_TOPOLOGY_LABEL: &str = "topology.kubernetes.io/region";
/// Ten minutes.
pub const DEFAULT_CLEANUP_TIMEOUT_SECONDS: u64 = 600;
/// Half of a source's Peers on a target.
pub const DEFAULT_MAX_DELETE_PERCENT: u8 = 50;
/// Limit for the members of a mesh.
pub const MOST_CLUSTERS: usize = 1024;
/// Limit for each list of networks, also in the CRD.
pub const MOST_CIDRS: usize = 64;

impl Networks {
    /// Every declared network.
    pub fn all(&self) -> impl Iterator<Item = Cidr> + '_ {
        let (one, two, rest): (&[Cidr], [Option<Cidr>; 2], &[Cidr]) = match self {
            Networks::Typed {
                pods,
                wireguard,
                service,
                additional,
            } => (pods, [Some(*wireguard), *service], additional),
            Networks::Flat(list) => (list, [None, None], &[]),
        };
        one.iter()
            .copied()
            .chain(two.into_iter().flatten())
            .chain(rest.iter().copied())
    }

    /// The path in the cluster's entry at which a network is declared.
    pub fn path_of(&self, cidr: Cidr) -> Option<String> {
        let numbered = |field: &str, list: &[Cidr]| {
            list.iter()
                .position(|net| *net == cidr)
                .map(|at| format!("{field}[{at}]"))
        };
        match self {
            Networks::Typed {
                pods,
                wireguard,
                service,
                additional,
            } => numbered("podCIDRs", pods)
                .or_else(|| (*wireguard == cidr).then(|| "wireguardCIDR".to_owned()))
                .or_else(|| (*service == Some(cidr)).then(|| "serviceCIDR".to_owned()))
                .or_else(|| numbered("additionalCIDRs", additional)),
            Networks::Flat(list) => numbered("allowedNetworks", list),
        }
    }

    /// Reports whether a node may have this pod CIDR.
    pub(super) fn allows_pods(&self, cidr: Cidr) -> bool {
        match self {
            Networks::Typed { pods, .. } => pods.iter().any(|net| net.contains(cidr)),
            Networks::Flat(list) => list.iter().any(|net| net.contains(cidr)),
        }
    }

    /// Reports whether a node may have this WireGuard address.
    pub(super) fn allows_wireguard(&self, address: IpAddr) -> bool {
        match self {
            Networks::Typed { wireguard, .. } => wireguard.contains_address(address),
            Networks::Flat(list) => list.iter().any(|net| net.contains_address(address)),
        }
    }

    /// The IP family of the declared WireGuard network; of the first network if
    /// the entry does not declare a WireGuard network.
    pub(super) fn wireguard_family(&self) -> Option<Family> {
        let network = match self {
            Networks::Typed { wireguard, .. } => Some(wireguard),
            Networks::Flat(list) => list.iter().min(),
        };
        network.map(|network| Family::of(network.first()))
    }

    /// Reports whether a node's own address is declared to be reachable through
    /// the mesh.
    pub(super) fn declares_internal(&self, address: IpAddr) -> bool {
        match self {
            Networks::Typed { additional, .. } => {
                additional.iter().any(|net| net.contains_address(address))
            }
            Networks::Flat(list) => list.iter().any(|net| net.contains_address(address)),
        }
    }
}

/// A valid spec with warnings, or all its problems, errors first.
pub type Validated = Result<(MeshSpec, Vec<Problem>), Vec<Problem>>;

/// Validates a spec on its own. Conflicts with other meshes are detected by
/// [`overlap::admit`](crate::kilo::overlap::admit).
pub fn validate(raw: &RawSpec) -> Validated {
    let mut check = Check::default();
    let RawSpec {
        clusters,
        cleanup_timeout,
        max_delete_percent,
    } = raw;
    if clusters.len() < 2 {
        check.refuse(
            "spec.clusters",
            format!("lists {} cluster(s)", clusters.len()),
            "a mesh connects at least two clusters",
        );
    }
    if clusters.len() > MOST_CLUSTERS {
        check.refuse(
            "spec.clusters",
            format!("lists {} clusters", clusters.len()),
            "at most 1024 are supported",
        );
    }
    check.locals(clusters);
    let mut entries = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (index, cluster) in clusters.iter().enumerate() {
        let path = format!("spec.clusters[{index}]");
        if !names.insert(cluster.name.as_str()) {
            check.refuse(
                format!("{path}.name"),
                format!("{} is used twice", quoted(&cluster.name)),
                "give every cluster of the mesh its own name",
            );
        }
        if let Some((name, spec)) = check.cluster(&path, index, cluster) {
            entries.insert(name, spec);
        }
    }
    let cleanup_timeout_seconds = check.cleanup_timeout(cleanup_timeout.as_deref());
    let max_delete_percent = check.number(
        "spec.maxDeletePercent",
        *max_delete_percent,
        0..=100,
        i64::from(DEFAULT_MAX_DELETE_PERCENT),
    );
    if !check.errors.is_empty() {
        check.errors.append(&mut check.remarks);
        return Err(check.errors);
    }
    let max_delete_percent = u8::try_from(max_delete_percent).unwrap_or(DEFAULT_MAX_DELETE_PERCENT);
    Ok((
        MeshSpec {
            clusters: entries,
            cleanup_timeout_seconds,
            max_delete_percent,
        },
        check.remarks,
    ))
}

#[derive(Default)]
struct Check {
    errors: Vec<Problem>,
    remarks: Vec<Problem>,
}

impl Check {
    fn refuse(&mut self, path: impl AsRef<str>, what: impl AsRef<str>, hint: impl AsRef<str>) {
        self.errors
            .push(Problem::new(Reason::InvalidSpec, path, what, hint));
    }

    fn locals(&mut self, clusters: &[RawCluster]) {
        let locals: Vec<&str> = clusters
            .iter()
            .filter(|c| c.local)
            .map(|c| c.name.as_str())
            .collect();
        if locals.len() > 1 {
            let message = format!(
                "{} clusters are local: {}",
                locals.len(),
                quoted(&locals.join(", "))
            );
            self.refuse(
                "spec.clusters",
                message,
                "set local: true only on the cluster that the operator runs in",
            );
        }
    }

    fn cluster(
        &mut self,
        path: &str,
        index: usize,
        raw: &RawCluster,
    ) -> Option<(ClusterName, ClusterSpec)> {
        let name = ClusterName::try_from(raw.name.as_str())
            .map_err(|wrong| {
                self.refuse(
                    format!("{path}.name"),
                    wrong.to_string(),
                    "choose a short lower-case name such as eu-west",
                )
            })
            .ok();
        self.credentials(path, raw);
        let networks = self.networks(path, raw);
        let port = self.number(
            &format!("{path}.wireguardPort"),
            raw.wireguard_port,
            1..=65535,
            i64::from(DEFAULT_WIREGUARD_PORT),
        );
        let keepalive = self.number(
            &format!("{path}.persistentKeepalive"),
            raw.persistent_keepalive,
            0..=65535,
            0,
        );
        let topology_label = raw
            .topology_label
            .clone()
            .unwrap_or_else(|| DEFAULT_TOPOLOGY_LABEL.to_owned());
        if topology_label.is_empty() || topology_label.len() > 317 {
            self.refuse(
                format!("{path}.topologyLabel"),
                "is not a label key",
                "omit it to use Kilo's default",
            );
        }
        let endpoint_from = self.endpoint_from(
            &format!("{path}.endpointFrom"),
            raw.endpoint_from.as_deref(),
        );
        let spec = ClusterSpec {
            index,
            local: raw.local,
            kubeconfig_secret: raw.kubeconfig_secret.clone(),
            networks: networks?,
            wireguard_port: u16::try_from(port).unwrap_or(DEFAULT_WIREGUARD_PORT),
            keepalive: u16::try_from(keepalive).unwrap_or(0),
            topology_label,
            endpoint_from,
        };
        Some((name?, spec))
    }

    fn endpoint_from(&mut self, path: &str, text: Option<&str>) -> EndpointFrom {
        match text {
            None => EndpointFrom::Global,
            Some("Kilo") => EndpointFrom::Kilo,
            Some(other) => {
                self.refuse(
                    path,
                    format!("{} is not a valid value", quoted(other)),
                    "use Kilo, or omit it",
                );
                EndpointFrom::Global
            }
        }
    }

    fn credentials(&mut self, path: &str, raw: &RawCluster) {
        let named = raw
            .kubeconfig_secret
            .as_ref()
            .is_some_and(|secret| !secret.name.is_empty());
        if !raw.local && !named {
            self.refuse(
                format!("{path}.kubeconfigSecretRef"),
                format!("cluster {} has no kubeconfig", quoted(&raw.name)),
                "set it to the Secret in the mesh's namespace that holds the kubeconfig, or set local: true",
            );
        }
    }

    fn networks(&mut self, path: &str, raw: &RawCluster) -> Option<Networks> {
        // The Go operator writes an empty string for a missing value.
        let service_cidr = raw.service_cidr.as_ref().filter(|text| !text.is_empty());
        let typed = raw.pod_cidrs.is_some()
            || raw.wireguard_cidr.is_some()
            || service_cidr.is_some()
            || raw.additional_cidrs.is_some();
        match (&raw.allowed_networks, typed) {
            (Some(_), true) => {
                self.refuse(
                    path,
                    "mixes allowedNetworks with podCIDRs, wireguardCIDR, serviceCIDR or additionalCIDRs",
                    "use one of the two forms",
                );
                None
            }
            (Some(list), false) => {
                let list = self.list(&format!("{path}.allowedNetworks"), Some(list), true)?;
                Some(Networks::Flat(list))
            }
            (None, _) => {
                let pods = self.list(&format!("{path}.podCIDRs"), raw.pod_cidrs.as_ref(), true);
                let wireguard = match &raw.wireguard_cidr {
                    Some(text) => self.cidr(&format!("{path}.wireguardCIDR"), text),
                    None => {
                        self.refuse(
                            format!("{path}.wireguardCIDR"),
                            "is missing",
                            "set it to the value of Kilo's --subnet flag in that cluster",
                        );
                        None
                    }
                };
                let service = match service_cidr {
                    Some(text) => Some(self.cidr(&format!("{path}.serviceCIDR"), text)?),
                    None => None,
                };
                let additional = self.list(
                    &format!("{path}.additionalCIDRs"),
                    raw.additional_cidrs.as_ref(),
                    false,
                );
                Some(Networks::Typed {
                    pods: pods?,
                    wireguard: wireguard?,
                    service,
                    additional: additional?,
                })
            }
        }
    }

    fn list(
        &mut self,
        path: &str,
        texts: Option<&Vec<String>>,
        required: bool,
    ) -> Option<Vec<Cidr>> {
        let texts = texts.map(Vec::as_slice).unwrap_or_default();
        if required && texts.is_empty() {
            self.refuse(path, "is empty", "list at least one CIDR");
            return None;
        }
        if texts.len() > MOST_CIDRS {
            self.refuse(
                path,
                format!("has {} networks", texts.len()),
                "at most 64 are supported: aggregate them",
            );
            return None;
        }
        let parsed: Vec<Option<Cidr>> = texts
            .iter()
            .enumerate()
            .map(|(i, text)| self.cidr(&format!("{path}[{i}]"), text))
            .collect();
        parsed.into_iter().collect()
    }

    fn cidr(&mut self, path: &str, text: &str) -> Option<Cidr> {
        let written = match WrittenCidr::try_from(text) {
            Ok(written) => written,
            Err(wrong) => {
                self.refuse(
                    path,
                    format!("{} {wrong}", quoted(text)),
                    "write address/length, for example 10.1.0.0/16",
                );
                return None;
            }
        };
        let network = written.network;
        if let Some(why) = network.unroutable() {
            self.refuse(
                path,
                format!("{network} {why}"),
                "this range can't be routed to another cluster",
            );
            return None;
        }
        if written.has_host_bits() {
            let message = format!(
                "{} has host bits set; it is read as {network}",
                quoted(text)
            );
            self.remarks.push(Problem::new(
                Reason::CIDRHostBits,
                path,
                message,
                format!("write {network}"),
            ));
        }
        Some(network)
    }

    fn number(
        &mut self,
        path: &str,
        value: Option<i64>,
        range: std::ops::RangeInclusive<i64>,
        default: i64,
    ) -> i64 {
        let value = value.unwrap_or(default);
        if !range.contains(&value) {
            self.refuse(
                path,
                format!("{value} is out of range"),
                format!("use {} to {}", range.start(), range.end()),
            );
        }
        value
    }

    fn cleanup_timeout(&mut self, text: Option<&str>) -> u64 {
        let Some(text) = text else {
            return DEFAULT_CLEANUP_TIMEOUT_SECONDS;
        };
        duration_seconds(text).unwrap_or_else(|| {
            self.refuse(
                "spec.cleanupTimeout",
                format!("{} is not a duration", quoted(text)),
                "write it like 90s, 10m or 1h30m",
            );
            DEFAULT_CLEANUP_TIMEOUT_SECONDS
        })
    }
}

/// `1h30m`, `10m`, `90s`: whole hours, minutes and seconds in this order.
pub fn duration_seconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut found = false;
    for (unit, seconds) in [('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((number, tail)) = rest.split_once(unit) {
            if number.is_empty() || number.len() > 9 || !number.bytes().all(|b| b.is_ascii_digit())
            {
                return None;
            }
            total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(seconds)?)?;
            rest = tail;
            found = true;
        }
    }
    (found && rest.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_hours_minutes_and_seconds() {
        assert_eq!(duration_seconds("1h30m"), Some(5400));
        assert_eq!(duration_seconds("90s"), Some(90));
        for bad in ["", "10", "m", "1m1h", "-1m", "1.5h", "1d", "99999999999h"] {
            assert_eq!(duration_seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_empty_service_cidr_is_none_and_an_empty_item_is_refused() {
        let cluster = |name: &str, item: &str| RawCluster {
            name: name.to_owned(),
            local: name == "a",
            kubeconfig_secret: Some(SecretRef {
                name: "s".to_owned(),
                key: None,
            }),
            pod_cidrs: Some(vec![item.to_owned()]),
            wireguard_cidr: Some("10.4.0.0/16".to_owned()),
            service_cidr: Some(String::new()),
            ..RawCluster::default()
        };
        let raw = |item: &str| RawSpec {
            clusters: vec![cluster("a", "10.1.0.0/16"), cluster("b", item)],
            ..RawSpec::default()
        };
        let (spec, _) = validate(&raw("10.2.0.0/16")).unwrap();
        assert!(
            spec.clusters
                .values()
                .all(|cluster| cluster.networks.all().count() == 2)
        );
        let wrong: Vec<String> = validate(&raw(""))
            .unwrap_err()
            .into_iter()
            .map(|problem| problem.subject)
            .collect();
        assert_eq!(wrong, ["spec.clusters[1].podCIDRs[0]"]);
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let cluster = |name: &str| RawCluster {
            name: name.to_owned(),
            pod_cidrs: Some(vec!["10.1.0.0/33".to_owned(), "127.0.0.0/8".to_owned()]),
            wireguard_port: Some(0),
            ..RawCluster::default()
        };
        let raw = RawSpec {
            clusters: vec![cluster("A"), cluster("b")],
            cleanup_timeout: Some("soon".to_owned()),
            max_delete_percent: Some(101),
        };
        let subjects: Vec<String> = validate(&raw)
            .unwrap_err()
            .into_iter()
            .map(|p| p.subject)
            .collect();
        let of = |i: usize| {
            [
                "kubeconfigSecretRef",
                "podCIDRs[0]",
                "podCIDRs[1]",
                "wireguardCIDR",
                "wireguardPort",
            ]
            .map(|f| format!("spec.clusters[{i}].{f}"))
        };
        let mut expected = vec!["spec.clusters[0].name".to_owned()];
        expected.extend(of(0));
        expected.extend(of(1));
        expected.extend([
            "spec.cleanupTimeout".to_owned(),
            "spec.maxDeletePercent".to_owned(),
        ]);
        assert_eq!(subjects, expected);
    }
}
