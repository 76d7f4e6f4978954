//! Changes every field of a ClusterMesh's spec, also to invalid values, and back.
//! The fields are taken from the CRD.

use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::case::{Action, Case, Step};
use crate::crash::story;
use crate::play::run;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test(
        "every_field_of_the_spec_may_become_anything_and_back",
        || {
            let mut played = 0;
            for (pointer, value) in mutations() {
                let report = run(&mutated(&pointer, &value));
                assert_eq!(
                    report.violations,
                    Vec::<String>::new(),
                    "{pointer} became {value}\n{}",
                    report.trace
                );
                played += 1;
            }
            println!("{played} mutations");
            Ok(())
        },
    )]
}

fn mutated(pointer: &str, value: &Value) -> Case {
    let mut case = story(&[], None);
    let action = Action::MutateMesh {
        mesh: 0,
        pointer: pointer.to_owned(),
        to: value.clone(),
    };
    case.steps.push(Step::Act(Duration::from_secs(20), action));
    case.steps.push(Step::Act(
        Duration::from_secs(150),
        Action::RestoreEntries { mesh: 0 },
    ));
    case
}

/// New values for each field: valid and invalid ones.
fn mutations() -> Vec<(String, Value)> {
    let crd: Value = serde_saphyr::from_str(include_str!(
        "../../../../config/crd/kilo.squat.ai_clustermeshes.yaml"
    ))
    .unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = Vec::new();
    collect(spec, "/spec", &mut fields);
    assert!(fields.len() > 15, "{fields:?}");
    let values = [
        json!(null),
        json!(""),
        json!("nonsense"),
        json!("x".repeat(300)),
        json!("10.2.0.0/16"),
        json!(-1),
        json!(0),
        json!(1),
        json!(4_294_967_296_u64),
        json!(true),
        json!(false),
        json!([]),
        json!(["nonsense"]),
        json!(["10.2.0.0/16", "10.2.0.0/16"]),
        json!({}),
        json!({ "name": "nobody" }),
    ];
    fields
        .iter()
        .flat_map(|field| {
            values
                .iter()
                .map(move |value| (field.clone(), value.clone()))
        })
        .collect()
}

/// Collects the fields. The second item represents a list: it is the first member.
fn collect(schema: &Value, path: &str, fields: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        collect(property, &path, fields);
        collect(&property["items"], &format!("{path}/1"), fields);
        fields.push(path);
    }
}
