//! Virtual workspace of an export: all its tenants at one address.

use serde_json::json;

use super::answer::{self, Backend, Refusal};
use super::discovery;
use super::front::{Front, Sent};
use super::model::{Answered, Binding, EXPORT_LABEL, Export, GroupResource, string};
use super::source::{Source, Through};
use super::target::Target;
use super::world::{User, Workspace};
use super::write::Writer;
use super::{list, stream};
use crate::proxy::Verb;
use crate::serve::Served;

/// A request to a virtual workspace.
pub(super) struct VirtualWorkspace<'a> {
    pub(super) front: &'a Front,
    pub(super) export: Export,
    pub(super) sent: &'a Sent,
    pub(super) target: &'a Target,
}

impl VirtualWorkspace<'_> {
    pub(super) async fn answer(&self, cluster: &str) -> Result<Served, Refusal> {
        if cluster == "*" {
            self.across().await
        } else {
            self.tenant(cluster).await
        }
    }

    /// Handles requests across all tenants: lists and watches only. The claims that a
    /// single tenant accepted are not checked.
    async fn across(&self) -> Result<Served, Refusal> {
        let target = self.target;
        self.check_content(target.verb_name()).await?;
        if target.is_discovery() {
            return discovery::answer(&self.front.world, &self.export, target).await;
        }
        let through = self
            .through()
            .ok_or_else(|| answer::text(404, "404 page not found\n"))?;
        match target.verb {
            Verb::List | Verb::Watch if !target.namespace.is_empty() => {
                let message = "cross-cluster LIST and WATCH are required to be cross-namespace, not scoped to a specific namespace";
                Err(answer::failure(400, "BadRequest", message))
            }
            Verb::List => list::answer(&self.source(through, None), &target.query, self.sent).await,
            Verb::Watch => {
                stream::watch(self.source(through, None), &target.query, self.sent).await
            }
            Verb::Patch => Err(answer::failure(
                404,
                "NotFound",
                &format!("{} {:?} not found", target.what, target.name),
            )),
            _ => Err(answer::no_such_resource()),
        }
    }

    async fn tenant(&self, cluster: &str) -> Result<Served, Refusal> {
        let (world, target, user) = (&self.front.world, self.target, &self.sent.user);
        let refused = || answer::forbidden(user, target);
        self.front.check_moving(cluster, target)?;
        let workspace = world
            .workspace(cluster)
            .filter(|workspace| workspace.shard == self.front.shard)
            .ok_or_else(refused)?;
        let binding = world
            .binding_to(&self.export.key, cluster)
            .ok_or_else(refused)?;
        if target.is_discovery() {
            self.check_content("get").await?;
            return discovery::answer(world, &self.export, target).await;
        }
        let through = self.through().ok_or_else(refused)?;
        let claim = self.claim_of(&binding, &through);
        let open = match &through {
            Through::Export => binding.binds(&target.what),
            Through::Bindings => matches!(target.verb, Verb::Get | Verb::List | Verb::Watch),
            Through::Claim(_) => claim.is_some_and(|claim| claim.claim.allows(target.verb_name())),
        };
        if !open {
            return Err(refused());
        }
        self.check_content(target.verb_name()).await?;
        if target.subresource == "scale" {
            return Err(answer::no_such_resource());
        }
        match target.verb {
            Verb::Watch => {
                stream::watch(
                    self.source(through, Some(cluster)),
                    &target.query,
                    self.sent,
                )
                .await
            }
            Verb::Get | Verb::List => {
                self.read(&workspace, claim, matches!(through, Through::Bindings))
                    .await
            }
            _ => {
                self.check_quota(cluster)?;
                self.front
                    .check_reserved(&workspace, self.sent, target, &self.sent.as_admitted())
                    .await?;
                let may_create = claim.is_none_or(|claim| claim.claim.allows("create"))
                    && self.may("create").await?;
                Writer {
                    workspace: &workspace,
                    sent: self.sent,
                    target,
                    claim,
                    may_create,
                }
                .answer()
                .await
            }
        }
    }

    /// Rejects writes that exceed a quota of the tenant.
    fn check_quota(&self, cluster: &str) -> Result<(), Refusal> {
        let target = self.target;
        let what = match target.subresource.as_str() {
            "" => target.what.resource.clone(),
            subresource => format!("{}/{subresource}", target.what.resource),
        };
        if !self.front.world.is_used_up(cluster, &what) {
            return Ok(());
        }
        let counted = format!("count/{what}");
        let why = format!(
            "exceeded quota: workspace, requested: {counted}=1, used: {counted}=100, limited: {counted}=100"
        );
        Err(answer::forbidden_because(target, &why))
    }

    /// Reads the visible objects of one tenant.
    async fn read(
        &self,
        workspace: &Workspace,
        claim: Option<&Answered>,
        bindings: bool,
    ) -> Result<Served, Refusal> {
        let mut labels = claim.map(Answered::match_labels).unwrap_or_default();
        if bindings {
            labels.push((EXPORT_LABEL.to_owned(), self.export.key.hash()));
        }
        let target = self.target;
        let query = if target.verb == Verb::List {
            target.query.selecting(
                &labels
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect::<Vec<_>>()
                    .join(","),
            )
        } else {
            target.query.clone()
        };
        let headers = self.sent.as_admitted();
        let response = workspace
            .http
            .pass(
                &target.method,
                &query.on(&target.path),
                headers,
                bytes::Bytes::new(),
            )
            .await;
        let answered =
            Backend::read(response.map_err(|error| answer::unreachable(&error))?).await?;
        if target.verb == Verb::Get && answered.is_success() {
            let object = answered.body();
            let label = |key: &str| {
                object
                    .pointer("/metadata/labels")
                    .map(|labels| string(labels, &format!("/{}", key.replace('/', "~1"))))
            };
            if labels.iter().any(|(key, value)| label(key) != Some(value)) {
                return Err(answer::failure(
                    404,
                    "NotFound",
                    &format!("{} {:?} not found", target.what, target.name),
                ));
            }
        }
        Ok(answered.serve(&workspace.id))
    }

    fn through(&self) -> Option<Through> {
        let what = &self.target.what;
        if *what == GroupResource::new("apis.kcp.io", "apibindings") {
            return Some(Through::Bindings);
        }
        if self.export.exports(what) {
            return Some(Through::Export);
        }
        self.export.claim(what).cloned().map(Through::Claim)
    }

    /// Returns the claim in effect by which a tenant grants access to the resource. Its
    /// identity must be that of the resource in the tenant's workspace.
    fn claim_of<'b>(&self, binding: &'b Binding, through: &Through) -> Option<&'b Answered> {
        let Through::Claim(asked) = through else {
            return None;
        };
        let claim = binding
            .claim(&self.target.what)
            .filter(|answered| answered.claim.is(asked))?;
        let has = |binding: &Binding| {
            binding
                .bound
                .iter()
                .any(|bound| bound.what == asked.what && bound.identity_hash == asked.identity_hash)
        };
        let present = asked.identity_hash.is_empty()
            || self
                .front
                .world
                .bindings(&binding.workspace)
                .iter()
                .any(has);
        present.then_some(claim)
    }

    fn source(&self, through: Through, only: Option<&str>) -> Source {
        Source {
            world: self.front.world.clone(),
            shard: self.front.shard,
            export: self.export.key.clone(),
            what: self.target.what.clone(),
            through,
            path: self.target.path.clone(),
            only: only.map(str::to_owned),
        }
    }

    /// Checks the permission for a verb on the export, regardless of the requested
    /// resource.
    async fn may(&self, verb: &str) -> Result<bool, Refusal> {
        let Some(provider) = self.front.world.workspace(&self.export.key.provider) else {
            return Ok(false);
        };
        let attributes = json!({ "verb": verb, "group": "apis.kcp.io", "resource": "apiexports", "subresource": "content", "name": self.export.key.name });
        self.front
            .may(
                &self.sent.user,
                &provider,
                json!({ "resourceAttributes": attributes }),
            )
            .await
    }

    async fn check_content(&self, verb: &str) -> Result<(), Refusal> {
        let user: &User = &self.sent.user;
        if self.may(verb).await? {
            Ok(())
        } else {
            Err(answer::forbidden(user, self.target))
        }
    }
}
