//! Authorization by RBAC roles. Groups, bindings and aggregation are not simulated: an
//! account has the union of the rules of its roles.

use serde_json::Value;

use crate::json::{at, meta_text, texts};
use crate::path::Target;
use crate::refusal::Refusal;
use crate::request::Verb;

/// A user with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub user: String,
    pub rules: Vec<Rule>,
}

/// A rule of a role. `*` matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub groups: Vec<String>,
    /// Resources and subresources, e.g. `clustermeshes/status`.
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
    /// Namespace in which the rule applies; `None` for all.
    pub namespace: Option<String>,
    /// Names of the objects that the rule applies to; empty for all.
    pub names: Vec<String>,
}

impl Account {
    /// Returns an account that may do everything.
    pub fn admin(user: &str) -> Account {
        let all = || vec!["*".to_owned()];
        Account {
            user: user.into(),
            rules: vec![Rule {
                groups: all(),
                resources: all(),
                verbs: all(),
                namespace: None,
                names: vec![],
            }],
        }
    }

    /// Returns an account with the rules of all Roles and ClusterRoles among these
    /// objects. A Role applies in its namespace. The user is the first ServiceAccount
    /// among them. Other objects are ignored.
    pub fn from_roles(objects: &[Value]) -> Account {
        let account = objects
            .iter()
            .find(|object| *at(object, &["kind"]) == "ServiceAccount");
        let user = account.map_or_else(
            || "somebody".to_owned(),
            |account| {
                format!(
                    "system:serviceaccount:{}:{}",
                    meta_text(account, "namespace"),
                    meta_text(account, "name")
                )
            },
        );
        let mut rules = Vec::new();
        for object in objects {
            let namespace = match at(object, &["kind"]).as_str() {
                Some("ClusterRole") => None,
                Some("Role") => Some(
                    at(object, &["metadata", "namespace"])
                        .as_str()
                        .unwrap_or("default")
                        .to_owned(),
                ),
                _ => continue,
            };
            let of_role = at(object, &["rules"]).as_array().into_iter().flatten();
            rules.extend(of_role.map(|rule| Rule::of(rule, namespace.clone())));
        }
        Account { user, rules }
    }

    pub(crate) fn allows(&self, verb: &str, target: &Target) -> bool {
        self.rules.iter().any(|rule| rule.allows(verb, target))
    }

    pub(crate) fn check(&self, verb: Verb, target: &Target) -> Result<(), Refusal> {
        if self.allows(verb.name(), target) {
            Ok(())
        } else {
            Err(denied(&self.user, verb, target))
        }
    }
}

impl Rule {
    fn of(rule: &Value, namespace: Option<String>) -> Rule {
        let list = |field: &str| texts(rule.get(field)).map(str::to_owned).collect();
        Rule {
            groups: list("apiGroups"),
            resources: list("resources"),
            verbs: list("verbs"),
            namespace,
            names: list("resourceNames"),
        }
    }

    fn allows(&self, verb: &str, target: &Target) -> bool {
        let any =
            |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
        let resource = || match &target.subresource {
            None => any(&self.resources, &target.plural),
            Some(part) => {
                let (exact, all) = (target.resource(), format!("*/{part}"));
                self.resources
                    .iter()
                    .any(|one| one == "*" || *one == exact || *one == all)
            }
        };
        any(&self.verbs, verb)
            && any(&self.groups, &target.group)
            && resource()
            && self
                .namespace
                .as_deref()
                .is_none_or(|namespace| target.lies_in() == Some(namespace))
            && (self.names.is_empty()
                || target
                    .name
                    .as_ref()
                    .is_some_and(|name| self.names.contains(name)))
    }
}

/// Returns the 403 of a real server.
pub(crate) fn denied(user: &str, verb: Verb, target: &Target) -> Refusal {
    let place = match target.lies_in() {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User {user:?} cannot {verb} resource {:?} in API group {:?} {place}",
        target.resource(),
        target.group
    );
    Refusal::forbidden(
        &target.plural,
        &target.group,
        target.name.as_deref().unwrap_or_default(),
        &why,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn may(account: &Account, verb: &str, path: &str) -> bool {
        account.allows(verb, &Target::of(path).unwrap())
    }

    #[test]
    fn roles_hold_in_their_namespace_and_for_their_names() {
        let roles = [
            json!({ "kind": "ClusterRole", "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] }] }),
            json!({ "kind": "Role", "metadata": { "namespace": "a" }, "rules": [
                { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"], "resourceNames": ["one"] },
                { "apiGroups": ["kilo.squat.ai"], "resources": ["clustermeshes/status"], "verbs": ["patch"] },
            ]}),
            json!({ "kind": "ServiceAccount", "metadata": { "namespace": "a", "name": "b" } }),
        ];
        let account = Account::from_roles(&roles);
        assert_eq!(account.user, "system:serviceaccount:a:b");
        assert!(may(&account, "list", "/api/v1/nodes"));
        assert!(!may(&account, "watch", "/api/v1/nodes"));
        assert!(may(
            &account,
            "get",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/one"
        ));
        assert!(!may(
            &account,
            "get",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/two"
        ));
        assert!(!may(
            &account,
            "get",
            "/apis/coordination.k8s.io/v1/namespaces/b/leases/one"
        ));
        assert!(may(
            &account,
            "patch",
            "/apis/kilo.squat.ai/v1alpha1/namespaces/a/clustermeshes/m/status"
        ));
        assert!(!may(
            &account,
            "patch",
            "/apis/kilo.squat.ai/v1alpha1/namespaces/a/clustermeshes/m"
        ));
        assert!(may(
            &Account::admin("root"),
            "delete",
            "/apis/kilo.squat.ai/v1alpha1/namespaces/a/clustermeshes/m/status"
        ));
    }
}
