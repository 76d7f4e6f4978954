//! `plan -f` with objects of the Cilium back end: works from dumps alone, and never shows a Secret.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod common;

use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use common::{Folder, Outcome, meshwright, reasons};
use serde_json::{Value, json};

const FFM: &str = "cluster-ffm-1";
const BER: &str = "cluster-ber-2";
const ALL: &str = "plan -f mesh-binding.yaml -f global-service.yaml -f connectivity-intent.yaml --hub-uid hub-1 \
    --cluster cluster-ffm-1=ffm.json --cluster cluster-ber-2=ber.json";
const MESH: &str =
    "plan -f mesh-binding.yaml --cluster cluster-ffm-1=ffm.json --cluster cluster-ber-2=ber.json";

fn example(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/cilium")
        .join(file);
    std::fs::read_to_string(path).unwrap()
}

/// Objects of one of the example's clusters.
struct Dump(Vec<Value>);

impl Dump {
    fn of(cluster: &str) -> Dump {
        let lists: Vec<Value> =
            serde_saphyr::from_multiple(&example(&format!("{cluster}.yaml"))).unwrap();
        Dump(
            lists
                .iter()
                .flat_map(|list| list["items"].as_array().unwrap().clone())
                .collect(),
        )
    }

    fn get(&mut self, kind: &str, name: &str) -> &mut Value {
        self.0
            .iter_mut()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .unwrap()
    }

    fn with(mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) -> Dump {
        change(self.get(kind, name));
        self
    }

    fn without(mut self, gone: impl Fn(&Value) -> bool) -> Dump {
        self.0.retain(|object| !gone(object));
        self
    }

    fn text(&self) -> String {
        serde_json::to_string_pretty(&json!({"apiVersion": "v1", "kind": "List", "items": self.0}))
            .unwrap()
    }
}

fn folder(test: &str, ffm: &Dump, ber: &Dump) -> Folder {
    let folder = Folder::new(test)
        .with("ffm.json", &ffm.text())
        .with("ber.json", &ber.text());
    [
        "mesh-binding.yaml",
        "global-service.yaml",
        "connectivity-intent.yaml",
    ]
    .iter()
    .fold(folder, |folder, file| folder.with(file, &example(file)))
}

fn is_connection(object: &Value) -> bool {
    object["kind"] == "Secret"
        && ["cilium-clustermesh", "cilium-kvstoremesh"]
            .contains(&object["metadata"]["name"].as_str().unwrap())
}

/// All values in the Secrets of the example, raw and in base64.
fn secrets() -> Vec<String> {
    let mut all = Vec::new();
    for object in [Dump::of("ffm"), Dump::of("ber")]
        .into_iter()
        .flat_map(|dump| dump.0)
        .filter(|object| object["kind"] == "Secret")
    {
        for value in object["data"].as_object().unwrap().values() {
            let text =
                String::from_utf8(Base64::decode_vec(value.as_str().unwrap()).unwrap()).unwrap();
            all.extend(
                text.lines()
                    .filter(|line| line.len() > 40)
                    .map(str::to_owned),
            );
            all.push(value.as_str().unwrap().to_owned());
            // Long lines are truncated in the output.
            all.push(value.as_str().unwrap().chars().take(24).collect());
            all.push(value.as_str().unwrap().chars().skip(100).take(24).collect());
        }
    }
    assert!(
        all.len() > 50 && all.iter().all(|secret| secret.len() >= 24),
        "{}",
        all.len()
    );
    all
}

fn assert_shows_no_secret(outcome: &Outcome) {
    for secret in secrets() {
        assert!(
            !outcome.stdout.contains(&secret) && !outcome.stderr.contains(&secret),
            "{secret} is shown:\n{}",
            outcome.stderr
        );
    }
}

fn changed(list: &Value) -> Vec<String> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|change| {
            format!(
                "{} {}",
                change["kind"].as_str().unwrap(),
                change["name"].as_str().unwrap()
            )
        })
        .collect()
}

fn fields(change: &Value) -> Vec<&str> {
    change["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| field["name"].as_str().unwrap())
        .collect()
}

fn object<'a>(report: &'a Value, kind: &str) -> &'a Value {
    report["objects"]
        .as_array()
        .unwrap()
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

/// Arguments of the README's command, and the plan that it shows.
fn readme() -> (Vec<String>, String) {
    let text = example("README.md");
    let block = |language: &str| {
        text.split(&format!("```{language}\n"))
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap()
            .to_owned()
    };
    let command = block("sh").replace("\\\n", " ");
    let arguments = command
        .trim()
        .strip_prefix("cargo run -q -p meshwright -- ")
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    (arguments, block("text"))
}

#[test]
fn the_readme_of_the_example_shows_its_plan() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (arguments, shown) = readme();
    let outcome = meshwright(
        &root,
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        "",
    );
    assert_eq!((outcome.code, outcome.stderr.as_str()), (1, ""));
    assert!(
        outcome.stdout == shown,
        "examples/cilium/README.md shows another plan than:\n{}",
        outcome.stdout
    );
    assert_shows_no_secret(&outcome);
}

#[test]
fn a_plan_is_data() {
    let folder = folder("cilium-data", &Dump::of("ffm"), &Dump::of("ber"));
    let (code, report) = folder.json(ALL);
    assert_eq!(code, 1);
    let (ffm, ber) = (&report["targets"][FFM], &report["targets"][BER]);
    let policy = ffm["create"][0]["name"].as_str().unwrap();
    assert!(policy.starts_with("frontend-to-backend-"), "{policy}");
    assert_eq!(
        (
            changed(&ffm["create"]).len(),
            &ffm["update"],
            &ffm["delete"]
        ),
        (1, &json!([]), &json!([]))
    );
    let of_ber = [
        "Secret cilium-kvstoremesh",
        "Secret cilium-clustermesh",
        &format!("CiliumNetworkPolicy {policy}"),
    ];
    assert_eq!(
        (changed(&ber["create"]), changed(&ber["update"])),
        (
            of_ber.map(str::to_owned).to_vec(),
            vec!["Service nginx".to_owned()]
        )
    );
    assert_eq!(
        ber["create"][0]["fields"],
        json!([{"name": FFM, "before": null, "after": "(redacted)"}])
    );
    let annotation =
        json!({"name": "service.cilium.io/affinity", "before": null, "after": "local"});
    assert!(
        ber["update"][0]["fields"]
            .as_array()
            .unwrap()
            .contains(&annotation),
        "{}",
        ber["update"]
    );
    let spec = &ber["create"][2]["after"]["spec"];
    assert_eq!(
        spec["ingress"][0]["fromEndpoints"]
            .as_array()
            .unwrap()
            .len(),
        2,
        "{spec}"
    );

    let binding = object(&report, "ClusterMeshBinding");
    assert_eq!(
        (&binding["phase"], &binding["clusters"][0]["connected"]),
        (&json!("Degraded"), &json!(false))
    );
    assert_eq!(
        (
            &binding["clusters"][1]["name"],
            &binding["clusters"][1]["clusterId"]
        ),
        (&json!(BER), &json!(2))
    );
    let connected = binding["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == "MeshConnected")
        .unwrap();
    assert_eq!(
        (&connected["status"], &connected["reason"]),
        (&json!("Unknown"), &json!("NotVerifiable"))
    );
    assert_eq!(
        object(&report, "GlobalService")["exportedClusters"],
        json!([FFM])
    );
    assert_eq!(
        object(&report, "GlobalService")["endpoints"],
        json!({FFM: 2, BER: 2})
    );
    assert_eq!(reasons(&report), ["NotVerifiable"]);
    assert!(
        report["notes"][0]
            .as_str()
            .unwrap()
            .starts_with("nothing was dialled"),
        "{}",
        report["notes"]
    );
    assert_eq!(report["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn nothing_of_a_secret_is_shown_in_any_form() {
    let folder = folder("cilium-secrets", &Dump::of("ffm"), &Dump::of("ber"));
    for format in ["table", "json", "yaml"] {
        let outcome = folder.run(&format!("{ALL} -o {format}"));
        assert_eq!(outcome.code, 1, "{}", outcome.stderr);
        assert_shows_no_secret(&outcome);
    }
}

#[test]
fn not_even_of_a_broken_dump() {
    let whole = example("ffm.yaml");
    let at_key = whole.find("tls.key: ").unwrap() + 9;
    let key = &whole[at_key..at_key + whole[at_key..].find('\n').unwrap()];
    let one_line = serde_json::to_string(
        &json!({"apiVersion": "v1", "kind": "List", "items": Dump::of("ffm").0}),
    )
    .unwrap();
    for (broken, why) in [
        (
            whole.replacen(key, &format!("{key}\n     x"), 1),
            "not valid YAML",
        ),
        (whole.replacen(key, &format!("[{key}"), 1), "not valid YAML"),
        (
            whole.replacen(key, &format!("\"{key}"), 1),
            "not valid YAML",
        ),
        (
            whole.replacen(key, &format!("{key}\n      tls.key: {key}"), 1),
            "duplicate key \"tls.key\"",
        ),
        (whole.replacen(key, &format!("{key}!"), 1), "cannot read "),
        (whole.replacen(key, &format!("[{key}]"), 1), "cannot read "),
        (whole.clone() + "---\n" + &whole, "duplicate "),
        (one_line[..one_line.len() - 2].to_owned(), "not valid JSON"),
        (
            one_line.replacen(r#""tls.key":""#, r#""tls.key":7,"more":""#, 1),
            "cannot read ",
        ),
    ] {
        let folder =
            folder("cilium-broken", &Dump::of("ffm"), &Dump::of("ber")).with("ffm.json", &broken);
        let outcome = folder.run(ALL);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (2, ""),
            "{why}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains(why) && outcome.stderr.contains("ffm.json:"),
            "{why}: {}",
            outcome.stderr
        );
        assert_shows_no_secret(&outcome);
    }
}

#[test]
fn a_mesh_that_is_new_gets_its_keys_first() {
    let (ffm, ber) = (Dump::of("ffm").without(is_connection), Dump::of("ber"));
    let folder = folder("cilium-new", &ffm, &ber);
    let (code, report) = folder.json(ALL);
    assert_eq!(
        (code, &object(&report, "ClusterMeshBinding")["phase"]),
        (1, &json!("Connecting"))
    );
    for target in [FFM, BER] {
        assert_eq!(
            changed(&report["targets"][target]["create"]),
            ["Secret cilium-kvstoremesh", "Secret cilium-clustermesh"],
            "{target}"
        );
    }
    assert_eq!(
        report["targets"][BER]["update"],
        json!([]),
        "exports wait for the mesh"
    );
    for kind in ["GlobalService", "ConnectivityIntent"] {
        assert_eq!(object(&report, kind)["phase"], "Pending");
    }
    assert_eq!(reasons(&report), ["MeshNotReady", "MeshNotReady"]);
}

#[test]
fn an_identity_that_is_not_set_is_given() {
    let unnamed = Dump::of("ber").with("ConfigMap", "cilium-config", |map| {
        map["data"] = json!({"cluster-id": "0", "cluster-name": "default"})
    });
    let folder = folder("cilium-identity", &Dump::of("ffm"), &unnamed);
    let (code, report) = folder.json(MESH);
    let update = &report["targets"][BER]["update"][0];
    let expected = json!([{"name": "cluster-name", "before": "default", "after": BER}, {"name": "cluster-id", "before": "0", "after": "2"}]);
    assert_eq!(
        (code, &update["kind"], &update["fields"]),
        (1, &json!("ConfigMap"), &expected)
    );
    let text = folder.run(MESH).stdout;
    assert!(
        text.contains("  ~ ConfigMap kube-system/cilium-config\n      - cluster-name  default\n      + cluster-name  cluster-ber-2\n"),
        "{text}"
    );
}

#[test]
fn what_is_in_place_is_nothing_to_do_but_not_verified() {
    let folder = folder("cilium-done", &Dump::of("ffm"), &Dump::of("ber"));
    // The same cluster under another name.
    let mut ber = Dump::of("ber");
    for mut secret in Dump::of("ffm").0.into_iter().filter(is_connection) {
        let text = secret["data"][BER].as_str().unwrap().to_owned();
        let text = String::from_utf8(Base64::decode_vec(&text).unwrap())
            .unwrap()
            .replace("198.51.100.20", "203.0.113.10");
        secret["data"] = json!({FFM: Base64::encode_string(text.as_bytes())});
        secret["metadata"]["managedFields"][0]["fieldsV1"] =
            json!({"f:data": {format!("f:{FFM}"): {}}});
        ber.0.push(secret);
    }
    let folder = folder.with("ber.json", &ber.text());
    let (code, report) = folder.json(MESH);
    assert_eq!(
        (code, reasons(&report)),
        (0, vec!["NotVerifiable", "NotVerifiable"])
    );
    assert_eq!(
        object(&report, "ClusterMeshBinding")["phase"],
        "Degraded",
        "nobody dialled"
    );
    let text = folder.run(MESH).stdout;
    assert!(
        text.contains("not verified")
            && text.contains(
                "Plan: 0 to create, 0 to update, 0 to delete.\nnote: nothing was dialled"
            ),
        "{text}"
    );

    let other = ber.with("Secret", "cilium-kvstoremesh", |secret| {
        secret["data"][FFM] = json!("b3RoZXI=")
    });
    let changed_key = folder.with("ber.json", &other.text());
    let (code, report) = changed_key.json(MESH);
    assert_eq!(
        (code, fields(&report["targets"][BER]["update"][0])),
        (1, vec![FFM])
    );
    let text = changed_key.run(MESH).stdout;
    assert!(
        text.contains("  ~ Secret kube-system/cilium-kvstoremesh\n      ~ cluster-ffm-1\n"),
        "{text}"
    );
}

#[test]
fn a_cluster_without_a_file_is_unknown_and_costs_nothing() {
    let folder = folder("cilium-unknown", &Dump::of("ffm"), &Dump::of("ber"));
    let (code, report) = folder.json("plan -f mesh-binding.yaml --cluster cluster-ffm-1=ffm.json");
    assert_eq!((code, reasons(&report)), (0, vec!["ClusterUnreachable"]));
    assert_eq!(
        report["targets"],
        json!({FFM: {"create": [], "update": [], "delete": []}})
    );
    assert!(
        report["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("no file given: add --cluster"),
        "{report}"
    );
}

#[test]
fn what_nothing_wants_goes_only_when_all_objects_are_given() {
    let three = "apiVersion: networking.edge-portal.eu/v1alpha1\nkind: ClusterMeshBinding\nmetadata: {name: other, namespace: default}\n\
        spec: {clusterRefs: [{name: cluster-ffm-1}, {name: lab}]}\n";
    let folder =
        folder("cilium-left", &Dump::of("ffm"), &Dump::of("ber")).with("other.yaml", three);
    let args = "plan -f other.yaml --cluster cluster-ffm-1=ffm.json --cluster lab=ber.json";
    let lab = Dump::of("ber").with("ConfigMap", "cilium-config", |map| {
        map["data"] = json!({"cluster-id": "7", "cluster-name": "lab"})
    });
    let folder = folder.with("ber.json", &lab.text());
    let removed = |report: &Value| -> Vec<String> {
        let updates = report["targets"][FFM]["update"].as_array().unwrap().clone();
        let fields = updates
            .iter()
            .flat_map(|update| update["fields"].as_array().unwrap().clone());
        fields
            .filter(|field| field["after"] == Value::Null)
            .map(|field| field["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(removed(&folder.json(args).1), Vec::<String>::new());
    let gone = removed(&folder.json(&format!("{args} --all-meshes")).1);
    assert_eq!(
        gone.iter().filter(|name| *name == BER).count(),
        2,
        "{gone:?}"
    );
    assert!(
        gone.contains(&"service.cilium.io/global".to_owned()),
        "{gone:?}"
    );
}

#[test]
fn two_names_may_be_one_cluster() {
    let folder = folder("cilium-twice", &Dump::of("ffm"), &Dump::of("ffm"));
    let (code, report) = folder.json(MESH);
    assert_eq!(code, 1);
    assert_eq!(
        reasons(&report)
            .iter()
            .filter(|reason| **reason == "SameClusterTwice")
            .count(),
        2,
        "{report}"
    );
}

#[test]
fn policies_are_named_after_their_hub_or_workspace() {
    let folder = folder("cilium-hub", &Dump::of("ffm"), &Dump::of("ber"));
    let name = |report: &Value| {
        report["targets"][FFM]["create"][0]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let without = ALL.replace("--hub-uid hub-1", "");
    let (_, nowhere) = folder.json(&without);
    assert!(
        nowhere["notes"][1].as_str().unwrap().contains("--hub-uid"),
        "{}",
        nowhere["notes"]
    );
    assert!(
        folder
            .run(&without)
            .stdout
            .contains("note: policy names derive from the hub"),
        "the note is shown"
    );
    let here = folder.json(ALL).1;
    let annotated = |file: &str| {
        example(file).replace(
            "metadata:\n",
            "metadata:\n  annotations: {kcp.io/cluster: hub-1}\n",
        )
    };
    let in_kcp = [
        "mesh-binding.yaml",
        "global-service.yaml",
        "connectivity-intent.yaml",
    ];
    let folder = in_kcp
        .iter()
        .fold(folder, |folder, file| folder.with(file, &annotated(file)));
    let there = folder.json(&without).1;
    assert_eq!(
        (name(&here), there["notes"].as_array().unwrap().len()),
        (name(&there), 1)
    );
    assert_ne!(name(&here), name(&nowhere));
}

#[test]
fn what_a_dump_lacks_is_said() {
    let bare = Dump::of("ber").without(|object| {
        object["kind"] == "CustomResourceDefinition" || object["kind"] == "DaemonSet"
    });
    let unmanaged = |mut object: Value| {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        object
    };
    let ber = Dump(
        bare.0
            .into_iter()
            .map(unmanaged)
            .chain([json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x"}})])
            .collect(),
    );
    let outcome = folder("cilium-notes", &Dump::of("ffm"), &ber).run(ALL);
    for note in [
        "note: cluster-ber-2: ignored 1 Event\n",
        "note: cluster-ber-2: its files hold no DaemonSet, no CustomResourceDefinition; results that depend on them are unknown\n",
        "note: cluster-ber-2: no object in its files has managedFields",
    ] {
        assert!(outcome.stderr.contains(note), "{note}: {}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains(FFM), "{}", outcome.stderr);
    let text = outcome
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        text.contains("cluster cluster-ber-2: cilium: not known yet"),
        "{text}"
    );
}

#[test]
fn a_dump_may_come_in_pieces() {
    let (first, second): (Vec<Value>, Vec<Value>) = Dump::of("ber")
        .0
        .into_iter()
        .partition(|object| object["kind"] == "Secret");
    let folder = folder("cilium-pieces", &Dump::of("ffm"), &Dump(first))
        .with("more.json", &Dump(second).text());
    let whole = self::folder("cilium-whole", &Dump::of("ffm"), &Dump::of("ber")).json(ALL);
    assert_eq!(
        folder.json(&format!("{ALL} --cluster cluster-ber-2=more.json")),
        whole
    );
}

#[test]
fn kinds_of_both_back_ends_do_not_mix() {
    let folder = folder("cilium-mixed", &Dump::of("ffm"), &Dump::of("ber"))
        .with("mesh.yaml", &common::mesh("prod"));
    let outcome = folder.run("plan -f mesh.yaml -f mesh-binding.yaml");
    assert_eq!(outcome.code, 2);
    let said = "ClusterMeshBinding.networking.edge-portal.eu belongs to the Cilium back end, but the ClusterMesh in";
    assert!(
        outcome
            .stderr
            .replace('\n', " ")
            .replace("  ", " ")
            .contains("belongs to the Cilium back end"),
        "{said}: {}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("mesh.yaml:2:7")
            && outcome.stderr.contains("mesh-binding.yaml:3:7"),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("plan the two back ends separately"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let binding = "apiVersion: networking.edge-portal.eu/v1alpha1
kind: ClusterMeshBinding
metadata: {name: mesh}
spec:
  clusterRefs: [{name: a}]
  meshConfig: {serviceTyp: NodePort, enableKvStoreMesh: \"yes\"}
---
apiVersion: networking.edge-portal.eu/v1
kind: GlobalService
metadata: {name: old}
---
apiVersion: networking.edge-portal.eu/v1alpha1
kind: GlobalService
metadata: {name: web}
spec:
  meshRef: {name: mesh}
  selector: {namespace: shop, name: web, labelSelector: {app: web}}
  globalAnnotations: {service.cilium.io/shared: true}
---
apiVersion: networking.edge-portal.eu/v1alpha1
kind: ConnectivityIntent
metadata: {name: let}
spec:
  meshRef: {name: mesh}
  action: Alow
  source: {namespace: a}
  ports: [{port: 0}]
---
apiVersion: v1
kind: Service
metadata: {name: x}
";
    let outcome = Folder::new("cilium-wrong")
        .with("all.yaml", binding)
        .run("plan -f all.yaml --cluster a=nowhere.yaml");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (2, ""));
    let text = outcome
        .stderr
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for (said, place, help) in [
        ("cannot read nowhere.yaml", "", ""),
        (
            "spec.clusterRefs: lists 1 cluster(s)",
            "all.yaml:5:3",
            "a mesh connects at least two clusters",
        ),
        (
            "spec.meshConfig.serviceTyp: unknown field",
            "all.yaml:6:16",
            "did you mean serviceType?",
        ),
        (
            "spec.meshConfig.enableKvStoreMesh: must be true or false, not a string",
            "all.yaml:6:57",
            "",
        ),
        (
            "found apiVersion \"networking.edge-portal.eu/v1\"",
            "all.yaml:8:13",
            "write apiVersion: networking.edge-portal.eu/v1alpha1",
        ),
        (
            "spec.selector: needs exactly one of name and labelSelector",
            "all.yaml:17:3",
            "use one of the two",
        ),
        (
            "must be a string, not a boolean",
            "all.yaml:18:49",
            "put it in quotes",
        ),
        (
            "spec.action: \"Alow\" is not a valid value",
            "all.yaml:25:11",
            "use Allow or Deny",
        ),
        (
            "spec.destination.namespace: is required",
            "all.yaml:23:1",
            "set it to the namespace of the pods",
        ),
        (
            "spec.ports[0].port: is required and must be 1 to 65535",
            "all.yaml:27:18",
            "set a port",
        ),
        (
            "found kind \"Service\"",
            "all.yaml:30:7",
            "pass the objects of a cluster with --cluster NAME=FILE",
        ),
    ] {
        assert!(
            text.contains(said) && text.contains(place) && text.contains(help),
            "{said} {place} {help}:\n{}",
            outcome.stderr
        );
    }
    assert!(text.ends_with("errors in the input"), "{text}");
}

#[test]
fn a_spec_that_is_wrong_could_not_be_planned_but_others_are() {
    let wrong = example("global-service.yaml").replace("affinity: local", "affinty: local");
    let folder = folder("cilium-invalid", &Dump::of("ffm"), &Dump::of("ber"))
        .with("global-service.yaml", &wrong);
    let (code, report) = folder.json(&format!("{ALL} --all-meshes"));
    assert_eq!(
        (code, &object(&report, "GlobalService")["phase"]),
        (2, &json!("Error"))
    );
    assert!(reasons(&report).contains(&"InvalidSpec"), "{report}");
    assert!(
        changed(&report["targets"][BER]["create"])
            .contains(&"Secret cilium-kvstoremesh".to_owned()),
        "{report}"
    );
    let text = folder.run(ALL);
    assert!(
        text.stderr.contains("did you mean affinity?")
            && text.stdout.contains("    in global-service.yaml:8:3\n"),
        "{}{}",
        text.stderr,
        text.stdout
    );
}

#[test]
fn a_policy_that_drifted_is_shown_by_its_lines() {
    let folder = folder("cilium-drift", &Dump::of("ffm"), &Dump::of("ber"));
    let (_, report) = folder.json(ALL);
    let mut ffm = Dump::of("ffm");
    let mut policy = report["targets"][FFM]["create"][0]["after"].clone();
    ffm.0.push(policy.clone());
    let (_, report) = folder.with("ffm.json", &ffm.text()).json(ALL);
    assert_eq!(
        report["targets"][FFM],
        json!({"create": [], "update": [], "delete": []})
    );
    policy["spec"]["ingress"][0]["toPorts"][0]["ports"][0]["port"] = json!("8081");
    ffm.0.pop();
    ffm.0.push(policy);
    let folder = self::folder("cilium-drift", &ffm, &Dump::of("ber"));
    let text = folder.run(ALL).stdout;
    let expected =
        "      -             - port: \"8081\"\n      +             - port: \"8080\"\n\nPlan:";
    assert!(text.contains(expected), "{text}");
    assert_eq!(
        folder.json(ALL).1["targets"][FFM]["update"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
