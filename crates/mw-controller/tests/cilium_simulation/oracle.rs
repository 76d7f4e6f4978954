//! Computes the expected contents of every cluster and which links work, from the
//! objects and the servers alone, with none of our crates.

use std::collections::{BTreeMap, BTreeSet};

use mw_sim::Cluster;
use serde_json::{Map, Value, json};

use crate::bed::{Bed, CLUSTERWIDE, CONNECTION_SECRETS, HUB, POLICIES};
use crate::lies::is_hostile;
use crate::object::{
    ANNOTATIONS, API, BINDING, DATA, INTENT, Kind, SERVICE, applied, array, is_deleted, refs, text,
};
use crate::site::{SYSTEM, WORKLOADS};
use crate::wire::{Attempt, Wire, base64};

/// Checks that the keys of a cluster connect to a remote, as an agent or
/// KVStoreMesh would with the same files.
pub(crate) fn connects(reader: &Cluster, wire: &Wire, remote: &str) -> Result<(), String> {
    let meshed = has_kvstoremesh(reader);
    let secret = if meshed {
        "cilium-kvstoremesh"
    } else {
        "cilium-clustermesh"
    };
    let file =
        entry(reader, secret, remote).ok_or_else(|| format!("{secret} has no key {remote}"))?;
    connect(reader, wire, secret, &file, remote)?;
    if meshed {
        let local = entry(reader, "cilium-clustermesh", remote)
            .ok_or_else(|| format!("cilium-clustermesh has no key {remote}"))?;
        if endpoint(&local) != Some("clustermesh-apiserver.kube-system.svc") {
            return Err(format!(
                "key {remote} of cilium-clustermesh does not lead to the own etcd"
            ));
        }
        ["trusted-ca-file", "cert-file", "key-file"]
            .iter()
            .try_for_each(|field| named_file(reader, secret, &local, field).map(drop))?;
    }
    Ok(())
}

fn connect(
    reader: &Cluster,
    wire: &Wire,
    secret: &str,
    file: &str,
    remote: &str,
) -> Result<(), String> {
    let name = endpoint(file).ok_or("there is no endpoint")?;
    let alias = || {
        file.split("ips:")
            .nth(1)
            .and_then(|rest| rest.split('"').nth(1))
            .map(str::to_owned)
    };
    let host = if name.ends_with(".mesh.cilium.io") {
        alias().ok_or("the name has no address")?
    } else {
        name.to_owned()
    };
    let attempt = Attempt {
        address: &format!("{host}:2379"),
        name,
        ca: &named_file(reader, secret, file, "trusted-ca-file")?,
        certificate: &named_file(reader, secret, file, "cert-file")?,
        cluster_name: remote,
    };
    named_file(reader, secret, file, "key-file")?;
    wire.connects(&attempt)
        .map(drop)
        .map_err(|(_, why)| format!("{host}: {why}"))
}

/// Returns the host of the first endpoint in a client configuration.
pub(crate) fn endpoint(file: &str) -> Option<&str> {
    file.split("- https://").nth(1)?.split([':', '\n']).next()
}

/// Returns the file in Cilium's folder that a field of a client configuration names.
fn named_file(reader: &Cluster, secret: &str, config: &str, field: &str) -> Result<String, String> {
    let path = config
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(": "))
        .unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let projected = [
        ("common-etcd-client", "remote"),
        ("local-etcd-client", "local"),
    ];
    let found = match projected
        .iter()
        .find_map(|(stem, kind)| Some((file.strip_prefix(stem)?, kind)))
    {
        Some((end, kind)) => {
            let key = match end {
                "-ca.crt" => "ca.crt",
                ".crt" => "tls.crt",
                _ => "tls.key",
            };
            entry(reader, &format!("clustermesh-apiserver-{kind}-cert"), key)
        }
        None => entry(reader, secret, file),
    };
    found.ok_or_else(|| format!("there is no file {file}"))
}

pub(crate) fn entry(cluster: &Cluster, secret: &str, key: &str) -> Option<String> {
    let secret = cluster.get(&format!("{SYSTEM}/secrets/{secret}"))?;
    decoded(&secret["data"][key])
}

pub(crate) fn decoded(value: &Value) -> Option<String> {
    String::from_utf8(base64(value.as_str()?)).ok()
}

fn has_kvstoremesh(cluster: &Cluster) -> bool {
    let deployment = cluster.get(&format!("{WORKLOADS}/deployments/clustermesh-apiserver"));
    let containers = deployment
        .map(|of| of["spec"]["template"]["spec"]["containers"].clone())
        .unwrap_or_default();
    array(&containers)
        .iter()
        .any(|container| container["name"] == "kvstoremesh")
}

/// Reports whether a cluster has Cilium's agents and clustermesh-apiserver.
pub(crate) fn runs_cilium(cluster: &Cluster) -> bool {
    ["daemonsets/cilium", "deployments/clustermesh-apiserver"]
        .iter()
        .all(|workload| cluster.get(&format!("{WORKLOADS}/{workload}")).is_some())
}

/// Returns the cluster-name in Cilium's configuration.
pub(crate) fn cilium_name(cluster: &Cluster) -> Option<String> {
    let config = cluster.get(&format!("{SYSTEM}/configmaps/cilium-config"))?;
    config["data"]["cluster-name"]
        .as_str()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// Returns the objects of a kind that are not being deleted, without hostile ones.
pub(crate) fn declared(hub: &Cluster, kind: Kind) -> Vec<Value> {
    let all = hub.list(&format!("{API}/{}", kind.0));
    let honest = all.iter().filter(|object| {
        !is_deleted(object) && !is_hostile(text(&object["metadata"]["namespace"]))
    });
    honest.map(|object| (**object).clone()).collect()
}

/// Returns the binding that an object depends on.
pub(crate) fn mesh_of(hub: &Cluster, object: &Value) -> Option<Value> {
    let namespace = text(&object["metadata"]["namespace"]);
    let path = format!(
        "{API}/namespaces/{namespace}/{}/{}",
        BINDING.0,
        text(&object["spec"]["meshRef"]["name"])
    );
    hub.get(&path)
        .map(|found| (*found).clone())
        .filter(|found| !is_deleted(found))
}

/// Returns the differences from the expected state.
pub(crate) fn differences(bed: &Bed) -> Vec<String> {
    let honest = bed.sites.keys().filter(|site| {
        bed.holders(site)
            .iter()
            .any(|namespace| !is_hostile(namespace))
    });
    let mut wrong: Vec<String> = honest
        .flat_map(|site| [keys(bed, site), annotations(bed, site), policies(bed, site)].concat())
        .collect();
    wrong.extend(identities(bed));
    wrong.extend(statuses(bed));
    wrong
}

/// Returns the remotes that bindings want a cluster to read.
pub(crate) fn remotes(hub: &Cluster, site: &str) -> BTreeSet<String> {
    let bindings = declared(hub, BINDING);
    let meshes = bindings
        .iter()
        .map(|binding| refs(&binding["spec"]))
        .filter(|refs| refs.contains(&site));
    meshes
        .flatten()
        .filter(|other| *other != site)
        .map(str::to_owned)
        .collect()
}

fn keys(bed: &Bed, site: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let reader = bed.on(site);
    let remotes = remotes(bed.on(HUB), site);
    let names: BTreeMap<&String, String> = remotes
        .iter()
        .filter_map(|remote| Some((remote, cilium_name(bed.on(remote))?)))
        .collect();
    for remote in &remotes {
        let connected = names
            .get(remote)
            .ok_or_else(|| "it has no name".to_owned())
            .and_then(|name| connects(reader, &bed.wire, name));
        if let Err(why) = connected {
            wrong.push(format!("{site} does not read {remote}: {why}"));
        }
    }
    for secret in CONNECTION_SECRETS {
        let Some(found) = reader.get(&format!("{SYSTEM}/secrets/{secret}")) else {
            continue;
        };
        for key in applied(&found, &DATA).into_iter().filter(|key| *key != ".") {
            let of = key.split('.').next().unwrap_or_default();
            if !names.values().any(|name| name == of) {
                wrong.push(format!(
                    "key {key} of {secret} on {site} is wanted by nobody"
                ));
            }
        }
    }
    wrong
}

/// Returns the annotations that a GlobalService's spec asks for.
pub(crate) fn asked_annotations(spec: &Value) -> BTreeMap<String, String> {
    let mut asked = BTreeMap::new();
    let mut pair = |new: &str, old: &str, value: &str| {
        asked.insert(format!("service.cilium.io/{new}"), value.to_owned());
        asked.insert(format!("io.cilium/{old}"), value.to_owned());
    };
    pair("global", "global-service", "true");
    pair(
        "shared",
        "shared-service",
        if spec["shared"] == false {
            "false"
        } else {
            "true"
        },
    );
    if let Some(affinity) = spec["affinity"].as_str() {
        pair("affinity", "service-affinity", affinity);
    }
    asked
}

/// Reports whether a GlobalService selects a Service.
pub(crate) fn is_meant(spec: &Value, service: &Value) -> bool {
    let (selector, meta) = (&spec["selector"], &service["metadata"]);
    let labelled = |labels: &Map<String, Value>| {
        labels
            .iter()
            .all(|(key, value)| meta["labels"][key] == *value)
    };
    let chosen = match selector["labelSelector"].as_object() {
        Some(labels) => labelled(labels),
        None => selector["name"] == meta["name"],
    };
    chosen && selector["namespace"] == meta["namespace"]
}

pub(crate) fn is_target(spec: &Value, binding: &Value, site: &str) -> bool {
    let targets = array(&spec["targetClusters"]);
    refs(&binding["spec"]).contains(&site)
        && (targets.is_empty() || targets.iter().any(|target| target == site))
}

/// Reports whether a GlobalService names a cluster that is not in the mesh, which is refused.
fn lacks_target(spec: &Value, binding: &Value) -> bool {
    let members = refs(&binding["spec"]);
    array(&spec["targetClusters"])
        .iter()
        .any(|target| !members.contains(&text(target)))
}

fn annotations(bed: &Bed, site: &str) -> Vec<String> {
    let hub = bed.on(HUB);
    let exports = declared(hub, SERVICE);
    let mut wrong = Vec::new();
    for service in bed.on(site).list("/api/v1/services") {
        let name = format!(
            "{}/{}",
            text(&service["metadata"]["namespace"]),
            text(&service["metadata"]["name"])
        );
        let here = exports
            .iter()
            .filter(|export| bed.holdings[text(&export["metadata"]["namespace"])].contains(site));
        // Annotations stay while the binding is missing or the export is refused;
        // the export may have selected other Services before.
        let rests = |export: &Value| {
            mesh_of(hub, export).is_none_or(|mesh| lacks_target(&export["spec"], &mesh))
        };
        let waits = here.clone().any(rests);
        let meant: Vec<&Value> = here
            .filter(|export| is_meant(&export["spec"], &service))
            .collect();
        let wants =
            |mesh: &Value, spec: &Value| is_target(spec, mesh, site) && !lacks_target(spec, mesh);
        let wanted = meant.iter().filter(|export| {
            mesh_of(hub, export).is_some_and(|mesh| wants(&mesh, &export["spec"]))
        });
        // Two tenants may ask for different values; the first one stays.
        let mut asked: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (key, value) in wanted.flat_map(|export| asked_annotations(&export["spec"])) {
            asked.entry(key).or_default().insert(value);
        }
        let found = &service["metadata"]["annotations"];
        for (key, values) in asked
            .iter()
            .filter(|(key, values)| !values.contains(text(&found[*key])))
        {
            wrong.push(format!("{name} on {site} lacks {key}={values:?}: {found}"));
        }
        let ours = applied(&service, &ANNOTATIONS)
            .into_iter()
            .filter(|key| *key != ".");
        wrong.extend(
            ours.filter(|key| !asked.contains_key(*key) && !waits)
                .map(|key| format!("{key} of {name} on {site} is wanted by nobody")),
        );
    }
    wrong
}

fn labels_of(pods: &Value) -> Map<String, Value> {
    let selector = pods["selector"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (format!("k8s:{key}"), value.clone()));
    let name = pods["name"]
        .as_str()
        .map(|name| ("k8s:app".to_owned(), name.into()));
    selector.chain(name).collect()
}

/// Returns the spec of the policy that an intent asks for, with these Cilium names
/// as source clusters.
fn asked_policy(intent: &Value, clusters: &BTreeSet<String>) -> Value {
    const NAMESPACE: &str = "k8s:io.kubernetes.pod.namespace";
    let spec = &intent["spec"];
    let source = |cluster: &String| {
        let mut labels = labels_of(&spec["source"]);
        labels.insert(NAMESPACE.to_owned(), spec["source"]["namespace"].clone());
        labels.insert(
            "k8s:io.cilium.k8s.policy.cluster".to_owned(),
            cluster.clone().into(),
        );
        json!({ "matchLabels": labels })
    };
    let mut rule = json!({ "fromEndpoints": clusters.iter().map(source).collect::<Vec<_>>() });
    let port =
        |port: &Value| json!({ "port": port["port"].to_string(), "protocol": port["protocol"] });
    if !array(&spec["ports"]).is_empty() {
        rule["toPorts"] =
            json!([{ "ports": array(&spec["ports"]).iter().map(port).collect::<Vec<_>>() }]);
    }
    let mut subject = labels_of(&spec["destination"]);
    if is_clusterwide(spec) {
        subject.insert(
            NAMESPACE.to_owned(),
            spec["destination"]["namespace"].clone(),
        );
    }
    match spec["action"] == "Deny" {
        true => {
            json!({ "endpointSelector": { "matchLabels": subject }, "ingressDeny": [rule], "enableDefaultDeny": { "ingress": false } })
        }
        false => json!({ "endpointSelector": { "matchLabels": subject }, "ingress": [rule] }),
    }
}

/// Reports whether objects can be created in a namespace.
pub(crate) fn has_namespace(cluster: &Cluster, name: &str) -> bool {
    cluster
        .get(&format!("/api/v1/namespaces/{name}"))
        .is_some_and(|namespace| !is_deleted(&namespace))
}

pub(crate) fn is_clusterwide(spec: &Value) -> bool {
    spec["policyMode"] == "Clusterwide"
}

/// Returns the policies of an intent on a cluster, found by its labels.
pub(crate) fn policies_of(cluster: &Cluster, namespace: &str, intent: &str) -> Vec<Value> {
    let all = [POLICIES, CLUSTERWIDE]
        .into_iter()
        .flat_map(|collection| cluster.list(collection));
    let is_of = |policy: &Value| {
        let labels = &policy["metadata"]["labels"];
        labels["app.kubernetes.io/managed-by"] == "meshwright"
            && labels["networking.edge-portal.eu/intent"] == intent
            && labels["networking.edge-portal.eu/intent-namespace"] == namespace
    };
    all.filter(|policy| is_of(policy))
        .map(|policy| (*policy).clone())
        .collect()
}

fn policies(bed: &Bed, site: &str) -> Vec<String> {
    let (hub, cluster) = (bed.on(HUB), bed.on(site));
    let intents = declared(hub, INTENT);
    let mut wrong = Vec::new();
    for intent in &intents {
        let (namespace, name) = (
            text(&intent["metadata"]["namespace"]),
            text(&intent["metadata"]["name"]),
        );
        // Policies stay while the binding is missing.
        let Some(mesh) = mesh_of(hub, intent) else {
            continue;
        };
        let found = policies_of(cluster, namespace, name);
        let place = text(&intent["spec"]["destination"]["namespace"]);
        let exists = is_clusterwide(&intent["spec"]) || has_namespace(cluster, place);
        let members = refs(&mesh["spec"]);
        if !members.contains(&site) || !exists {
            wrong.extend(
                found.iter().map(|_| {
                    format!("{site} has a policy of {namespace}/{name} that nobody wants")
                }),
            );
            continue;
        }
        let clusters: BTreeSet<String> = members
            .iter()
            .filter_map(|member| cilium_name(bed.on(member)))
            .collect();
        let asked = asked_policy(intent, &clusters);
        let home = (!is_clusterwide(&intent["spec"])).then_some(place);
        match found.as_slice() {
            [one] if one["spec"] == asked && one["metadata"]["namespace"].as_str() == home => {}
            [one] => wrong.push(format!(
                "the policy of {namespace}/{name} on {site} is {} and not {asked}",
                one["spec"]
            )),
            other => wrong.push(format!(
                "{site} has {} policies of {namespace}/{name}",
                other.len()
            )),
        }
    }
    let known = |policy: &Value| {
        let labels = &policy["metadata"]["labels"];
        let of = (
            &labels["networking.edge-portal.eu/intent-namespace"],
            &labels["networking.edge-portal.eu/intent"],
        );
        intents.iter().any(|intent| {
            (
                &intent["metadata"]["namespace"],
                &intent["metadata"]["name"],
            ) == of
        })
    };
    for policy in [POLICIES, CLUSTERWIDE]
        .into_iter()
        .flat_map(|collection| cluster.list(collection))
    {
        let ours = policy["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "meshwright";
        if ours && !known(&policy) {
            wrong.push(format!(
                "policy {} on {site} is wanted by nobody",
                text(&policy["metadata"]["name"])
            ));
        }
    }
    wrong
}

/// Reports clusters of a mesh that share a name or ID.
fn identities(bed: &Bed) -> Vec<String> {
    let mut wrong = Vec::new();
    for binding in declared(bed.on(HUB), BINDING) {
        let configs = refs(&binding["spec"]).into_iter().map(|site| {
            bed.on(site)
                .get(&format!("{SYSTEM}/configmaps/cilium-config"))
        });
        let all: Vec<(Value, Value)> = configs
            .flatten()
            .map(|config| {
                (
                    config["data"]["cluster-name"].clone(),
                    config["data"]["cluster-id"].clone(),
                )
            })
            .collect();
        let names: BTreeSet<&str> = all.iter().map(|(name, _)| text(name)).collect();
        let ids: BTreeSet<&str> = all.iter().map(|(_, id)| text(id)).collect();
        if names.len() < all.len()
            || ids.len() < all.len()
            || names.contains("")
            || ids.contains("")
        {
            wrong.push(format!("identities are not complete or clash: {all:?}"));
        }
    }
    wrong
}

/// Reports statuses that are not Ready although everything is as wanted.
fn statuses(bed: &Bed) -> Vec<String> {
    let hub = bed.on(HUB);
    let mut wrong = Vec::new();
    for (kind, done) in [
        (BINDING, "Connected"),
        (SERVICE, "Exported"),
        (INTENT, "Applied"),
    ] {
        for object in declared(hub, kind) {
            let (name, phase) = (
                text(&object["metadata"]["name"]),
                text(&object["status"]["phase"]),
            );
            if (kind != BINDING && mesh_of(hub, &object).is_none())
                || lacks_something(bed, kind, &object)
            {
                continue;
            }
            if phase != done
                || object["status"]["observedGeneration"] != object["metadata"]["generation"]
            {
                wrong.push(format!(
                    "{} {name} is {phase:?} and not {done}: {}",
                    kind.1, object["status"]["conditions"]
                ));
            }
        }
    }
    wrong
}

/// Reports whether a tenant that shares a cluster asks for another value of an annotation.
fn is_contradicted(bed: &Bed, export: &Value) -> bool {
    let of = |export: &Value| text(&export["metadata"]["namespace"]).to_owned();
    let asked = asked_annotations(&export["spec"]);
    let differs = |other: &Value| {
        asked_annotations(&other["spec"])
            .iter()
            .any(|(key, value)| asked.get(key).is_some_and(|own| own != value))
    };
    let shares = |other: &Value| {
        of(other) != of(export) && !bed.holdings[&of(other)].is_disjoint(&bed.holdings[&of(export)])
    };
    declared(bed.on(HUB), SERVICE)
        .iter()
        .any(|other| shares(other) && differs(other))
}

/// Reports whether an object can't be Ready: a cluster lacks the Service, a target is
/// not in the mesh, or no cluster has the namespace.
fn lacks_something(bed: &Bed, kind: Kind, object: &Value) -> bool {
    let Some(mesh) = mesh_of(bed.on(HUB), object) else {
        return false;
    };
    let members: Vec<String> = refs(&mesh["spec"]).into_iter().map(str::to_owned).collect();
    let has_service = |site: &String| {
        bed.on(site)
            .list("/api/v1/services")
            .iter()
            .any(|service| is_meant(&object["spec"], service))
    };
    let place = text(&object["spec"]["destination"]["namespace"]);
    match kind {
        SERVICE if lacks_target(&object["spec"], &mesh) || is_contradicted(bed, object) => true,
        SERVICE => !members
            .iter()
            .filter(|site| is_target(&object["spec"], &mesh, site))
            .all(has_service),
        INTENT => {
            !is_clusterwide(&object["spec"])
                && !members
                    .iter()
                    .any(|site| has_namespace(bed.on(site), place))
        }
        _ => false,
    }
}
