//! Checks of a kcp workspace: the provider's view of the export, or a tenant's view
//! of its own workspace. A tenant has no credentials of clusters, so no check needs
//! any.

use mw_api::cilium::kcp::{ANNOTATION_PATH, ApiBinding, ApiExport, Claim, FLEET_EXPORT, exported};
use mw_core::condition::READY;
use mw_core::condition::cilium::reason::CREDENTIALS;
use mw_core::problem::Reason;
use mw_core::text::{listed, shell_quoted};
use serde_json::json;

use crate::cilium::{Kind, PublishedObject, Workspace};
use crate::doctor::commands::Kubectl;
use crate::doctor::{Check, Layer, of_layer};
use crate::failure::Failure;

/// Inputs of the checks.
#[derive(Debug)]
pub struct Case<'a> {
    pub seen: &'a Workspace,
    /// Name of the provider's export.
    pub export: &'a str,
    /// Identity hash of the fleet's export, if that is in another workspace.
    pub fleet_identity: Option<&'a str>,
    pub kubectl: &'a Kubectl,
}

impl Case<'_> {
    pub fn checks(&self) -> Vec<Check> {
        let (export, binding) = (
            self.seen.exports.get(self.export),
            self.seen.binding_to(self.export),
        );
        let mut checks = Vec::new();
        checks.extend(export.into_iter().flat_map(|export| self.provider(export)));
        checks.extend(binding.into_iter().flat_map(|binding| self.tenant(binding)));
        if export.is_none() && binding.is_none() {
            let observed = format!(
                "neither APIExport {0} nor an APIBinding to {0} found",
                self.export
            );
            let hint = "use the context of the provider's workspace or of a tenant's, or set --api-export-name; to bind a tenant, \
                        apply the output of `meshwright crd --kcp binding`";
            checks.push(Check::failed(Layer::Crds, WORKSPACE, observed).hinted(hint));
        }
        checks
    }

    fn provider(&self, export: &ApiExport) -> Vec<Check> {
        let mut checks = vec![self.schemas(export), self.fleet_claim(export)];
        for (url, tenants) in &self.seen.endpoints {
            checks.push(endpoint(url, tenants.as_ref()));
            checks.extend(
                tenants
                    .iter()
                    .flatten()
                    .map(|tenant| self.answer(export, tenant)),
            );
        }
        if self.seen.endpoints.is_empty() {
            checks.push(Check::fine(
                Layer::Reachability,
                &subject(self.export),
                "no tenant is bound yet, so kcp has no endpoint for it",
            ));
        }
        checks
    }

    /// Checks that tenants get the schemas of this version.
    fn schemas(&self, export: &ApiExport) -> Check {
        let name = subject(self.export);
        let Ok(wanted) = exported() else {
            return Check::not_checked(
                Layer::Crds,
                &name,
                "cannot generate the schemas of this version",
            );
        };
        let has = |name: &str| {
            export
                .spec
                .resources
                .iter()
                .find(|one| one.name == name)
                .map(|one| one.schema.as_str())
        };
        let other: Vec<&str> = wanted
            .iter()
            .filter(|one| has(&one.name) != Some(one.schema.as_str()))
            .map(|one| one.name.as_str())
            .collect();
        if other.is_empty() {
            return Check::fine(
                Layer::Crds,
                &name,
                format!(
                    "exports {} kinds with the schemas of this version",
                    wanted.len()
                ),
            );
        }
        let observed = format!(
            "schemas differ from those of this version: {}",
            listed(&other, 5)
        );
        let claim = self
            .identity()
            .map(|hash| format!(" --fleet-identity {}", shell_quoted(hash)))
            .unwrap_or_default();
        let repair = format!(
            "meshwright crd --kcp export{claim} | {} apply --server-side --force-conflicts -f -",
            self.kubectl.hub()
        );
        Check::failed(Layer::Crds, &name, observed).repaired_by(repair)
    }

    /// Identity hash of the fleet's export, as far as it is known here.
    fn identity(&self) -> Option<&str> {
        let here = self
            .seen
            .fleet()
            .and_then(|fleet| fleet.status.identity_hash.as_deref());
        here.or(self.fleet_identity)
            .or_else(|| self.seen.fleet_identity())
    }

    /// Checks the claim on clusters: kcp silently accepts one with a wrong identity
    /// hash and then shows nothing.
    fn fleet_claim(&self, export: &ApiExport) -> Check {
        let (layer, name) = (Layer::Rights, subject(self.export));
        let claimed = export
            .spec
            .permission_claims
            .iter()
            .find(|claim| claim.is_on_clusters());
        let claimed = claimed.map(|claim| claim.identity_hash.as_deref().unwrap_or_default());
        let Some(wanted) = self.identity() else {
            let why = format!("the identity hash of {FLEET_EXPORT} is unknown here");
            let hint = format!(
                "that export is in another workspace: get the hash there with `kubectl get apiexport {FLEET_EXPORT} -o \
                 jsonpath='{{.status.identityHash}}'` and pass it with --fleet-identity"
            );
            return Check::not_checked(layer, &name, why).hinted(&hint);
        };
        let observed = match claimed {
            Some(hash) if hash == wanted => {
                return Check::fine(
                    layer,
                    &name,
                    format!(
                        "claims kubernetesclusters of {FLEET_EXPORT} ({})",
                        short(hash)
                    ),
                );
            }
            Some(hash) => {
                format!(
                    "claims kubernetesclusters of identity {}, but {FLEET_EXPORT} has {}: none is visible",
                    short(hash),
                    short(wanted)
                )
            }
            None => "does not claim kubernetesclusters".to_owned(),
        };
        let patch = format!(
            "$(meshwright crd --kcp fleet-claim --fleet-identity {})",
            shell_quoted(wanted)
        );
        let repair = format!(
            "{} patch apiexport {} --type merge --patch \"{patch}\"",
            self.kubectl.hub(),
            shell_quoted(self.export)
        );
        Check::failed(layer, &name, observed).repaired_by(repair)
    }

    /// Checks a tenant's answer to the claim on its clusters, as the provider sees it.
    fn answer(&self, export: &ApiExport, tenant: &ApiBinding) -> Check {
        let (layer, name) = (Layer::Rights, path(tenant));
        let Some(asked) = export
            .spec
            .permission_claims
            .iter()
            .find(|claim| claim.is_on_clusters())
        else {
            return Check::not_checked(
                layer,
                &name,
                "the export does not claim kubernetesclusters",
            );
        };
        let hint =
            "the tenant must accept it: `meshwright doctor` in its workspace prints the command";
        match unanswered(asked, tenant) {
            None => Check::fine(layer, &name, "its clusters are visible"),
            Some(why) => Check::failed(layer, &name, why).hinted(hint),
        }
    }

    fn tenant(&self, binding: &ApiBinding) -> Vec<Check> {
        let name = format!(
            "APIBinding {}",
            binding.metadata.name.as_deref().unwrap_or_default()
        );
        let mut checks = vec![bound(&name, binding)];
        checks.extend(self.claims(&name, binding));
        let objects = self
            .seen
            .objects
            .iter()
            .flat_map(|published_status| &published_status.objects);
        for object in objects {
            checks.extend(self.refs(object));
            checks.push(told(object));
        }
        checks
    }

    /// Checks every claim of the export.
    fn claims(&self, name: &str, binding: &ApiBinding) -> Vec<Check> {
        let asked = &binding.status.export_permission_claims;
        let mut findings: Vec<Check> = Vec::new();
        let open: Vec<(&Claim, String)> = asked
            .iter()
            .filter_map(|claim| Some((claim, unanswered(claim, binding)?)))
            .collect();
        for (_, why) in &open {
            findings.push(
                Check::failed(Layer::Rights, name, why).repaired_by(self.accept(binding, asked)),
            );
        }
        findings.extend(self.clusters_of_another_fleet(name, asked));
        of_layer(
            Layer::Rights,
            name,
            findings,
            format!("all {} claims of the provider are accepted", asked.len()),
        )
    }

    /// Checks that the claim is on the export that provides this workspace's clusters.
    fn clusters_of_another_fleet(&self, name: &str, asked: &[Claim]) -> Option<Check> {
        let failed =
            |why: String, hint: &str| Some(Check::failed(Layer::Rights, name, why).hinted(hint));
        let Some(claim) = asked.iter().find(|claim| claim.is_on_clusters()) else {
            let hint = "ask the provider's administrator to run `meshwright doctor` in the provider's workspace, which prints the command";
            return failed(
                "the provider does not claim kubernetesclusters and can't see any".to_owned(),
                hint,
            );
        };
        match (self.seen.fleet_identity(), claim.identity_hash.as_deref()) {
            (None, _) => failed(
                format!(
                    "no APIBinding provides kubernetesclusters in this workspace (APIExport {FLEET_EXPORT})"
                ),
                "bind the APIExport through which your platform offers clusters",
            ),
            (Some(here), claimed) if claimed != Some(here) => failed(
                format!(
                    "the provider claims kubernetesclusters of identity {}, but this workspace has {}",
                    short(claimed.unwrap_or_default()),
                    short(here)
                ),
                "ask the provider's administrator to run `meshwright doctor` in the provider's workspace, which prints the command",
            ),
            _ => None,
        }
    }

    /// Returns a command that accepts all claims and keeps other answers.
    fn accept(&self, binding: &ApiBinding, asked: &[Claim]) -> String {
        let given = &binding.spec.permission_claims;
        let answer = |claim: &Claim| match given
            .iter()
            .find(|one| one.is_alike(claim) && one.identity_hash == claim.identity_hash)
        {
            // A selector is immutable.
            Some(one) => Claim {
                state: claim.accepted().state,
                verbs: claim.verbs.clone(),
                ..one.clone()
            },
            None => claim.accepted(),
        };
        let others = given
            .iter()
            .filter(|one| !asked.iter().any(|claim| claim.is_alike(one)))
            .cloned();
        let claims: Vec<Claim> = asked.iter().map(answer).chain(others).collect();
        let patch = json!({ "spec": { "permissionClaims": claims } }).to_string();
        let name = binding.metadata.name.as_deref().unwrap_or_default();
        format!(
            "{} patch apibinding {} --type merge --patch {}",
            self.kubectl.hub(),
            shell_quoted(name),
            shell_quoted(&patch)
        )
    }

    /// Checks the KubernetesClusters that a binding names.
    fn refs(&self, object: &PublishedObject) -> Vec<Check> {
        if object.kind != Kind::Binding {
            return Vec::new();
        }
        let of = |name: &String| match &self.seen.clusters {
            Err(failure) => Check::not_checked(
                Layer::Health,
                name,
                format!("cannot list KubernetesClusters: {failure}"),
            ),
            Ok(clusters) => match clusters.get(&(object.namespace.clone(), name.clone())) {
                None => Check::failed(
                    Layer::Health,
                    name,
                    format!(
                        "KubernetesCluster {name} not found in namespace {}",
                        object.namespace
                    ),
                )
                .hinted("request the cluster, or remove it from clusterRefs"),
                Some(cluster) if cluster.is_ready() => {
                    Check::fine(Layer::Health, name, "KubernetesCluster is Ready")
                }
                Some(cluster) => {
                    let phase = cluster.status.phase.as_deref().unwrap_or("unknown");
                    Check::failed(
                        Layer::Health,
                        name,
                        format!("KubernetesCluster is not Ready (phase {phase})"),
                    )
                    .hinted("it joins the mesh once it is Ready; see its conditions")
                }
            },
        };
        object.clusters.iter().map(of).collect()
    }
}

const WORKSPACE: &str = "the workspace";

fn subject(export: &str) -> String {
    format!("APIExport {export}")
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn path(binding: &ApiBinding) -> String {
    let annotations = binding.metadata.annotations.as_ref();
    let path = annotations
        .and_then(|all| all.get(ANNOTATION_PATH))
        .cloned();
    path.unwrap_or_else(|| "a tenant".to_owned())
}

fn endpoint(url: &str, tenants: Result<&Vec<ApiBinding>, &Failure>) -> Check {
    match tenants {
        Ok(tenants) => Check::fine(
            Layer::Reachability,
            url,
            format!("reachable, {} tenants", tenants.len()),
        ),
        Err(failure) => {
            let hint = "its tenants keep what is written and get no updates until it answers: check the shard behind it";
            Check::failed(Layer::Reachability, url, failure.to_string()).hinted(hint)
        }
    }
}

fn bound(name: &str, binding: &ApiBinding) -> Check {
    match binding.status.phase.as_deref() {
        Some("Bound") => Check::fine(Layer::Crds, name, "bound"),
        phase => {
            let hint = format!(
                "see its conditions: `kubectl get apibinding {} -o yaml`",
                binding.metadata.name.as_deref().unwrap_or_default()
            );
            Check::failed(
                Layer::Crds,
                name,
                format!("not bound (phase {})", phase.unwrap_or("unknown")),
            )
            .hinted(&hint)
        }
    }
}

/// Returns why a claim of the export is not in effect; None if it is.
fn unanswered(asked: &Claim, binding: &ApiBinding) -> Option<String> {
    let what = if asked.group.is_empty() {
        asked.resource.clone()
    } else {
        format!("{}.{}", asked.resource, asked.group)
    };
    let given: Vec<&Claim> = binding
        .spec
        .permission_claims
        .iter()
        .filter(|one| one.is_alike(asked))
        .collect();
    let same = given
        .iter()
        .find(|one| one.identity_hash == asked.identity_hash);
    let lacks = |one: &Claim| {
        asked
            .verbs
            .iter()
            .any(|verb| !one.verbs.iter().any(|given| given == verb || given == "*"))
    };
    match (same, given.first()) {
        (None, None) => Some(format!("the claim on {what} is not answered")),
        (None, Some(other)) => {
            let [theirs, ours] = [*other, asked].map(|claim| {
                claim
                    .identity_hash
                    .as_deref()
                    .map_or("none", short)
                    .to_owned()
            });
            Some(format!(
                "the claim on {what} is answered for identity {theirs}, but the export claims {ours}"
            ))
        }
        (Some(one), _) if !one.is_accepted() => Some(format!("the claim on {what} is rejected")),
        (Some(one), _) if lacks(one) => Some(format!(
            "the claim on {what} is accepted for fewer verbs than {}",
            asked.verbs.join(", ")
        )),
        (Some(_), _) => {
            let in_force = binding
                .status
                .applied_permission_claims
                .iter()
                .any(|one| one.is_alike(asked));
            (!in_force).then(|| format!("the claim on {what} is accepted but not in effect yet"))
        }
    }
}

/// Checks the status that the provider last wrote for an object.
fn told(object: &PublishedObject) -> Check {
    let (layer, name) = (
        Layer::Drift,
        format!("{}/{}", object.namespace, object.name),
    );
    let ready = object
        .status
        .conditions()
        .iter()
        .find(|condition| condition.type_ == READY);
    let Some(ready) = ready else {
        let hint = "if this lasts, ask the platform's administrator to check the provider";
        return Check::failed(layer, &name, "the provider has written no status yet").hinted(hint);
    };
    let of = object.status.observed_generation().unwrap_or_default();
    if of != object.generation && !object.deleting {
        let hint = "if this lasts, ask the platform's administrator to check the provider";
        return Check::failed(
            layer,
            &name,
            "the provider has not observed the latest change yet",
        )
        .hinted(hint);
    }
    let phase = object.status.phase().unwrap_or("no phase");
    match ready.status == "True" {
        true => Check::fine(layer, &name, phase),
        false => Check::failed(layer, &name, format!("{phase}: {}", ready.message))
            .hinted(&next_step(&ready.reason)),
    }
}

/// Returns the next step for a reason of Ready. A tenant can't change the credentials
/// of clusters: they are on the management plane.
fn next_step(reason: &str) -> String {
    let ask = "ask the platform's administrator, who keeps the credentials of clusters on the management plane";
    let explain = format!("`meshwright explain {reason}`");
    match Reason::ALL.iter().find(|one| one.as_str() == reason) {
        Some(Reason::KubeconfigInvalid | Reason::AccessDenied | Reason::ClusterUnreachable) => {
            format!("{ask}; see {explain}")
        }
        _ if reason == CREDENTIALS => {
            format!("if every KubernetesCluster is Ready, {ask}; see {explain}")
        }
        _ => format!("run {explain}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::Value;

    fn claim(hash: &str) -> Value {
        json!({ "group": "platform.edge-portal.eu", "resource": "kubernetesclusters", "identityHash": hash, "verbs": ["get", "list"] })
    }

    fn answered(hash: &str, state: &str, verbs: &[&str], applied: bool) -> ApiBinding {
        let mut answer = claim(hash);
        (answer["state"], answer["selector"], answer["verbs"]) =
            (json!(state), json!({ "matchAll": true }), json!(verbs));
        let applied = if applied {
            vec![claim(hash)]
        } else {
            Vec::new()
        };
        let status =
            json!({ "exportPermissionClaims": [claim("aa")], "appliedPermissionClaims": applied });
        let binding = json!({ "metadata": { "name": "mesh" }, "spec": { "permissionClaims": [answer] }, "status": status });
        serde_json::from_value(binding).unwrap()
    }

    #[test]
    fn a_claim_is_in_force_when_it_is_accepted_with_its_identity_and_all_verbs() {
        let asked: Claim = serde_json::from_value(claim("aa")).unwrap();
        let said = |binding: &ApiBinding| unanswered(&asked, binding).unwrap_or_default();
        let all = ["get", "list"];
        assert_eq!(said(&answered("aa", "Accepted", &all, true)), "");
        assert_eq!(said(&answered("aa", "Accepted", &["*"], true)), "");
        assert!(said(&answered("aa", "Accepted", &all, false)).ends_with("not in effect yet"));
        assert!(said(&answered("aa", "Rejected", &all, true)).ends_with("is rejected"));
        assert!(said(&answered("aa", "Accepted", &["get"], true)).contains("fewer verbs"));
        assert!(
            said(&answered("bb", "Accepted", &all, true))
                .ends_with("is answered for identity bb, but the export claims aa")
        );
        assert!(said(&ApiBinding::default()).ends_with("is not answered"));
    }

    #[test]
    fn what_is_accepted_keeps_the_answers_to_other_claims() {
        let seen = Workspace {
            exports: [].into(),
            bindings: Vec::new(),
            endpoints: [].into(),
            objects: None,
            clusters: Ok([].into()),
        };
        let kubectl = Kubectl::default();
        let case = Case {
            seen: &seen,
            export: "export",
            fleet_identity: None,
            kubectl: &kubectl,
        };
        let binding = answered("aa", "Rejected", &["get"], true);
        let command = case.accept(&binding, &binding.status.export_permission_claims);
        let patch = command
            .strip_prefix("kubectl patch apibinding mesh --type merge --patch '")
            .unwrap()
            .strip_suffix('\'')
            .unwrap();
        let patch: Value = serde_json::from_str(patch).unwrap();
        let mut wanted = claim("aa");
        (wanted["state"], wanted["selector"]) = (json!("Accepted"), json!({ "matchAll": true }));
        assert_eq!(patch["spec"]["permissionClaims"], json!([wanted]));
    }
}
