//! Writes to one tenant through the virtual workspace.
//!
//! kcp reads the object, computes the new one and sends a PUT. For merge and JSON
//! patches the result is the same, so they are forwarded. For apply it differs: the
//! workspace never sees an apply, so nothing is ever pruned.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::answer::{self, Backend, Refusal};
use super::front::{Sent, strip_cluster};
use super::model::{Answered, array, set_metadata, string};
use super::target::{Query, Target};
use super::world::Workspace;
use crate::http::{APPLY_PATCH, JSON};
use crate::proxy::Verb;
use crate::serve::Served;

/// Default field manager.
const MANAGER: &str = "kcp";

pub(super) struct Writer<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) sent: &'a Sent,
    pub(super) target: &'a Target,
    /// Claim that grants access to the resource; `None` for the export's own resources.
    pub(super) claim: Option<&'a Answered>,
    /// True if an apply may create the object.
    pub(super) may_create: bool,
}

impl Writer<'_> {
    pub(super) async fn answer(&self) -> Result<Served, Refusal> {
        self.check_visible().await?;
        let target = self.target;
        match target.verb {
            Verb::Create | Verb::Update => {
                let mut object = self.sent.object()?;
                strip_cluster(&mut object);
                self.add_labels(&mut object)?;
                Ok(self
                    .send(&target.method, &self.managed(), JSON, &object)
                    .await?
                    .serve(&self.workspace.id))
            }
            Verb::Patch if self.sent.content().starts_with("application/apply-patch") => {
                self.apply().await
            }
            Verb::Patch => Ok(self.pass(&self.managed()).await?.serve(&self.workspace.id)),
            _ => Ok(self.pass(&target.query).await?.serve(&self.workspace.id)),
        }
    }

    /// Rejects writes to claimed objects that the tenant's selector excludes: they are not
    /// found, and deleting one is forbidden.
    async fn check_visible(&self) -> Result<(), Refusal> {
        let Some(claim) = self
            .claim
            .filter(|claim| !claim.match_labels().is_empty() && !self.target.name.is_empty())
        else {
            return Ok(());
        };
        let (present, object) = self.present().await?;
        if !present || claim.selects(&object) {
            return Ok(());
        }
        if self.target.verb == Verb::Delete {
            return Err(answer::forbidden_because(
                self.target,
                "object does not match required labels",
            ));
        }
        Err(answer::failure(
            404,
            "NotFound",
            &format!("{} {:?} not found", self.target.what, self.target.name),
        ))
    }

    fn add_labels(&self, object: &mut Value) -> Result<(), Refusal> {
        for (key, value) in self.claim.map(Answered::match_labels).unwrap_or_default() {
            let given = object
                .pointer("/metadata/labels")
                .and_then(|labels| labels.get(&key))
                .and_then(Value::as_str);
            if given.is_some_and(|given| given != value) {
                return Err(answer::forbidden_because(
                    self.target,
                    &format!("protected label {key} must have value {value}"),
                ));
            }
            set_metadata(object, "labels", &key, &value);
        }
        Ok(())
    }

    /// Returns the parameters with a field manager.
    fn managed(&self) -> Query {
        match self.target.query.get("fieldManager") {
            "" => self.target.query.with("fieldManager", MANAGER),
            _ => self.target.query.clone(),
        }
    }

    /// Computes the object by a dry run of the apply, and then sends a PUT.
    async fn apply(&self) -> Result<Served, Refusal> {
        let mut wanted = self.sent.object()?;
        strip_cluster(&mut wanted);
        self.add_labels(&mut wanted)?;
        let put = self
            .managed()
            .only(&["fieldManager", "dryRun", "fieldValidation"]);
        let (present, mut object) = self.present().await?;
        if !present {
            if !self.target.subresource.is_empty() {
                let message = "the server does not allow this method on the requested resource";
                return Err(answer::failure(405, "MethodNotAllowed", message));
            }
            return self.create(&put, &wanted).await;
        }
        if self.forget_applied(&mut object) {
            let forgotten = self
                .send(&Method::PUT, &Query::default(), JSON, &object)
                .await?;
            if !forgotten.is_success() {
                return Ok(forgotten.serve(&self.workspace.id));
            }
        }
        let computed = self
            .send(
                &Method::PATCH,
                &self.managed().with("dryRun", "All"),
                APPLY_PATCH,
                &wanted,
            )
            .await?;
        if !computed.is_success() {
            return Ok(computed.serve(&self.workspace.id));
        }
        let mut computed = computed.body();
        if let Some(metadata) = computed.get_mut("metadata").and_then(Value::as_object_mut) {
            // Without managedFields, the workspace keeps the existing ones and records
            // an update.
            metadata.remove("managedFields");
        }
        Ok(self
            .send(&Method::PUT, &put, JSON, &computed)
            .await?
            .serve(&self.workspace.id))
    }

    async fn create(&self, put: &Query, wanted: &Value) -> Result<Served, Refusal> {
        if !self.may_create {
            return Err(answer::forbidden(
                &self.sent.user,
                &Target {
                    verb: Verb::Create,
                    ..self.target.clone()
                },
            ));
        }
        let collection = self
            .target
            .path
            .rsplit_once('/')
            .map_or("", |(collection, _)| collection);
        let mut created = self
            .send_to(&Method::POST, &put.on(collection), JSON, wanted)
            .await?;
        if created.is_success() {
            created.code = 200;
        }
        Ok(created.serve(&self.workspace.id))
    }

    /// Removes the entries of fields that the manager applied directly in the workspace:
    /// otherwise the next apply would prune by them. Returns true if there were any.
    fn forget_applied(&self, object: &mut Value) -> bool {
        let query = self.managed();
        let manager = query.get("fieldManager");
        let mut fields = array(object, "/metadata/managedFields").to_vec();
        let before = fields.len();
        fields.retain(|entry| {
            string(entry, "/manager") != manager || string(entry, "/operation") != "Apply"
        });
        let changed = fields.len() != before;
        // An empty list alone would mean no change.
        let fields = if fields.is_empty() {
            vec![json!({})]
        } else {
            fields
        };
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("managedFields".into(), fields.into());
        }
        changed
    }

    async fn present(&self) -> Result<(bool, Value), Refusal> {
        let headers = self.sent.as_admitted();
        let path = match self.target.subresource.as_str() {
            "" => self.target.path.clone(),
            subresource => self
                .target
                .path
                .trim_end_matches(&format!("/{subresource}"))
                .to_owned(),
        };
        let response = self
            .workspace
            .http
            .pass(&Method::GET, &path, headers, Bytes::new())
            .await;
        let answered =
            Backend::read(response.map_err(|error| answer::unreachable(&error))?).await?;
        Ok((answered.is_success(), answered.body()))
    }

    /// Forwards the body of the client.
    async fn pass(&self, query: &Query) -> Result<Backend, Refusal> {
        let headers = self.sent.as_admitted();
        let path = query.on(&self.target.path);
        let response = self
            .workspace
            .http
            .pass(&self.target.method, &path, headers, self.sent.body.clone())
            .await;
        Backend::read(response.map_err(|error| answer::unreachable(&error))?).await
    }

    async fn send(
        &self,
        method: &Method,
        query: &Query,
        content: &'static str,
        body: &Value,
    ) -> Result<Backend, Refusal> {
        self.send_to(method, &query.on(&self.target.path), content, body)
            .await
    }

    async fn send_to(
        &self,
        method: &Method,
        path: &str,
        content: &'static str,
        body: &Value,
    ) -> Result<Backend, Refusal> {
        let mut headers = self.sent.as_admitted();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
        let response = self
            .workspace
            .http
            .pass(method, path, headers, Bytes::from(body.to_string()))
            .await;
        Backend::read(response.map_err(|error| answer::unreachable(&error))?).await
    }
}
