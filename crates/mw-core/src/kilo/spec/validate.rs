//! Validation of a spec: collects all problems, and fills in defaults.

use std::collections::{BTreeMap, BTreeSet};

use crate::cidr::{Cidr, WrittenCidr};
use crate::kilo::node::EndpointFrom;
use crate::kilo::spec::{
    ClusterSpec, DEFAULT_CLEANUP_TIMEOUT_SECONDS, DEFAULT_MAX_DELETE_PERCENT,
    DEFAULT_TOPOLOGY_LABEL, DEFAULT_WIREGUARD_PORT, MOST_CIDRS, MOST_CLUSTERS, MeshSpec, Networks,
    RawCluster, RawSpec,
};
use crate::names::ClusterName;
use crate::problem::{Problem, Reason};
use crate::text::quoted;

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
    use crate::kilo::spec::SecretRef;

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
    fn all_problems_are_reported_at_once() {
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
