//! SelfSubjectAccessReview.

use serde_json::{Value, json};

use crate::account::Account;
use crate::answer::Answer;
use crate::json::{at, map_mut};
use crate::path::Target;
use crate::refusal::{FieldError, Refusal};

pub(crate) fn answer(
    account: &Account,
    kind: &crate::kind::Kind,
    mut review: Value,
) -> Result<Answer, Refusal> {
    let asked = at(&review, &["spec", "resourceAttributes"]);
    if !at(&review, &["spec", "nonResourceAttributes"]).is_null() {
        return Err(Refusal::unsupported("reviews of paths"));
    }
    if !asked.is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(Refusal::invalid(
            kind,
            "",
            &[FieldError::invalid(
                "spec.resourceAttributes",
                &Value::Null,
                why,
            )],
        ));
    }
    let text = |field: &str| at(asked, &[field]).as_str().unwrap_or_default().to_owned();
    let given = |field: &str| Some(text(field)).filter(|text| !text.is_empty());
    let target = Target {
        group: text("group"),
        version: text("version"),
        plural: text("resource"),
        namespace: given("namespace"),
        name: given("name"),
        subresource: given("subresource"),
        beyond: None,
    };
    let allowed = account.allows(&text("verb"), &target);
    map_mut(&mut review).insert("status".to_owned(), json!({ "allowed": allowed }));
    Ok(Answer::json(201, &review))
}
