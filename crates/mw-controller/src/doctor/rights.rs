//! Permissions of an account, as its API server reports them.

use std::fmt;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::failure::Failure;

/// One verb on one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    verb: String,
    group: String,
    resource: String,
    name: Option<String>,
    namespace: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        self.name.iter().try_for_each(|name| write!(f, " {name}"))?;
        self.namespace
            .iter()
            .try_for_each(|namespace| write!(f, " in {namespace}"))
    }
}

/// Expands rules into single rights, in one namespace or cluster-wide.
pub fn rights(rules: &[PolicyRule], namespace: Option<&str>) -> Vec<Right> {
    let mut all = Vec::new();
    for rule in rules {
        let names: Vec<Option<&String>> = match rule.resource_names.as_deref() {
            None | Some([]) => vec![None],
            Some(names) => names.iter().map(Some).collect(),
        };
        for (group, resource) in rule
            .api_groups
            .iter()
            .flatten()
            .flat_map(|group| rule.resources.iter().flatten().map(move |of| (group, of)))
        {
            for (verb, name) in rule
                .verbs
                .iter()
                .flat_map(|verb| names.iter().map(move |name| (verb, *name)))
            {
                all.push(Right {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.cloned(),
                    namespace: namespace.map(str::to_owned),
                });
            }
        }
    }
    all
}

/// Account whose rights are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who<'a> {
    /// The account of the client.
    Myself,
    /// Another account; the client must be allowed to create SubjectAccessReviews.
    Account { namespace: &'a str, name: &'a str },
}

/// Result of checking the needed rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    All(usize),
    Without(Vec<Right>),
    /// The client is not allowed to check the account.
    Unknown,
}

pub async fn granted(client: &Client, who: Who<'_>, needed: &[Right]) -> Result<Granted, Failure> {
    let answers = join_all(needed.iter().map(|right| allowed(client, who, right))).await;
    let mut missing = Vec::new();
    for (right, answer) in needed.iter().zip(answers) {
        if !answer.map_err(|error| Failure::of(&error))? {
            missing.push(right.clone());
        }
    }
    Ok(if missing.is_empty() {
        Granted::All(needed.len())
    } else {
        Granted::Without(missing)
    })
}

async fn allowed(client: &Client, who: Who<'_>, right: &Right) -> Result<bool, kube::Error> {
    let params = PostParams::default();
    let attributes = Some(attributes(right));
    let status = match who {
        Who::Myself => {
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: attributes,
                ..SelfSubjectAccessReviewSpec::default()
            };
            let review = SelfSubjectAccessReview {
                spec,
                ..SelfSubjectAccessReview::default()
            };
            Api::all(client.clone())
                .create(&params, &review)
                .await?
                .status
        }
        Who::Account { namespace, name } => {
            let groups = [
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ];
            let spec = SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{name}")),
                groups: Some(groups.into()),
                resource_attributes: attributes,
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview {
                spec,
                ..SubjectAccessReview::default()
            };
            Api::all(client.clone())
                .create(&params, &review)
                .await?
                .status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}

fn attributes(right: &Right) -> ResourceAttributes {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (right.resource.clone(), None),
    };
    ResourceAttributes {
        verb: Some(right.verb.clone()),
        group: Some(right.group.clone()),
        resource: Some(resource),
        subresource,
        name: right.name.clone(),
        namespace: right.namespace.clone(),
        ..ResourceAttributes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_resource_and_name_of_a_rule_is_a_right() {
        let owned = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let rule = PolicyRule {
            api_groups: Some(owned(&["g"])),
            resources: Some(owned(&["things", "things/status"])),
            verbs: owned(&["get"]),
            resource_names: Some(owned(&["a", "b"])),
            ..PolicyRule::default()
        };
        let shown: Vec<String> = rights(&[rule], Some("ns"))
            .iter()
            .map(Right::to_string)
            .collect();
        let expected = [
            "get things.g a in ns",
            "get things.g b in ns",
            "get things/status.g a in ns",
            "get things/status.g b in ns",
        ];
        assert_eq!(shown, expected);
    }
}
