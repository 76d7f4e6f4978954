//! Stand-in for the part of kcp that labels claimed objects.
//!
//! An object has the label `claimed.internal.apis.kcp.io/<export>: <claim>` for each
//! export whose claim its tenant accepted. kcp sets it when the object is written; here
//! it follows a moment later. Both relabel all objects when a tenant changes its
//! answer, and neither does when it unbinds: then the label stays until the next write
//! of the object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::controller::object_path;
use super::model::{Answered, CLAIM_LABELS, GroupResource, array, string};
use super::world::{Workspace, World};
use crate::error::Result;
use crate::http::{JSON, MERGE_PATCH};

const PAUSE: Duration = Duration::from_millis(50);

/// Labels of claims in effect: key, value, and the claim that selects the objects.
type Rules = Vec<(String, String, Answered)>;

/// One task per resource that was ever claimed in the workspace.
pub(super) struct Stampers {
    world: Arc<World>,
    workspace: Arc<Workspace>,
    resources: BTreeSet<GroupResource>,
    tasks: JoinSet<()>,
}

impl Stampers {
    pub(super) fn new(world: Arc<World>, workspace: Arc<Workspace>) -> Self {
        Self {
            world,
            workspace,
            resources: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Starts missing tasks.
    pub(super) fn follow(&mut self) {
        for binding in self.world.bindings(&self.workspace.id) {
            for applied in &binding.applied {
                if self.resources.insert(applied.claim.what.clone()) {
                    let stamper = Stamper {
                        world: self.world.clone(),
                        workspace: self.workspace.clone(),
                        what: applied.claim.what.clone(),
                    };
                    self.tasks.spawn(stamper.run());
                }
            }
        }
    }
}

struct Stamper {
    world: Arc<World>,
    workspace: Arc<Workspace>,
    what: GroupResource,
}

impl Stamper {
    async fn run(self) {
        loop {
            let _ = self.follow().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self) -> Result<()> {
        let root = self.root().await?;
        let collection = format!("{root}/{}", self.what.resource);
        let mut changes = self.world.changes();
        let list = self
            .workspace
            .http
            .expect(Method::GET, &collection, JSON, None)
            .await?;
        let mut objects: BTreeMap<String, Value> = BTreeMap::new();
        for object in array(&list, "/items") {
            objects.insert(
                object_path(&root, &self.what.resource, object),
                object.clone(),
            );
        }
        let path = format!(
            "{collection}?watch=true&resourceVersion={}",
            string(&list, "/metadata/resourceVersion")
        );
        let mut events = self.workspace.http.watch(&path).await?;
        let mut stamped: Option<Rules> = None;
        loop {
            let rules = self.rules();
            if stamped.as_ref() != Some(&rules) {
                let exports = self.exports();
                for (path, object) in &objects {
                    self.stamp(path, object, &rules, |key| !exports.contains(key))
                        .await?;
                }
                stamped = Some(rules);
                continue;
            }
            tokio::select! {
                biased;
                event = events.next() => {
                    let Some(mut event) = event else { return Ok(()) };
                    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
                    let path = object_path(&root, &self.what.resource, &object);
                    match string(&event, "/type") {
                        "ADDED" | "MODIFIED" => {
                            self.stamp(&path, &object, &rules, |_| false).await?;
                            objects.insert(path, object);
                        }
                        "DELETED" => drop(objects.remove(&path)),
                        _ => return Ok(()),
                    }
                }
                _ = changes.changed() => {}
            }
        }
    }

    /// Returns the API path of the resource's group in its preferred version.
    async fn root(&self) -> Result<String> {
        if self.what.group.is_empty() {
            return Ok("/api/v1".to_owned());
        }
        let group = self
            .workspace
            .http
            .expect(
                Method::GET,
                &format!("/apis/{}", self.what.group),
                JSON,
                None,
            )
            .await?;
        Ok(format!(
            "/apis/{}",
            string(&group, "/preferredVersion/groupVersion")
        ))
    }

    fn rules(&self) -> Rules {
        let mut rules = Vec::new();
        for binding in self.world.bindings(&self.workspace.id) {
            let Some(export) = self.world.export_of(&binding) else {
                continue;
            };
            let applied = binding
                .applied
                .into_iter()
                .filter(|applied| applied.claim.what == self.what);
            rules.extend(
                applied.map(|applied| (export.claim_label(), applied.claim.hash(), applied)),
            );
        }
        rules
    }

    /// Returns the label keys of all exports that are bound here, claimed or not.
    fn exports(&self) -> BTreeSet<String> {
        let bindings = self.world.bindings(&self.workspace.id);
        bindings
            .iter()
            .filter_map(|binding| self.world.export_of(binding))
            .map(|export| export.claim_label())
            .collect()
    }

    /// Sets and removes labels according to the rules, except for those to be kept.
    async fn stamp(
        &self,
        path: &str,
        object: &Value,
        rules: &Rules,
        keep: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let wanted: BTreeMap<&String, &String> = rules
            .iter()
            .filter(|(_, _, claim)| claim.selects(object))
            .map(|(key, value, _)| (key, value))
            .collect();
        let labels = object
            .pointer("/metadata/labels")
            .and_then(Value::as_object);
        let present: BTreeMap<&String, &str> = labels
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.starts_with(CLAIM_LABELS))
            .map(|(key, value)| (key, value.as_str().unwrap_or_default()))
            .collect();
        let mut changed = Map::new();
        for (key, value) in &wanted {
            if present.get(key) != Some(&value.as_str()) {
                changed.insert((*key).clone(), json!(value));
            }
        }
        for key in present
            .keys()
            .filter(|key| !wanted.contains_key(*key) && !keep(key))
        {
            changed.insert((*key).clone(), Value::Null);
        }
        if changed.is_empty() {
            return Ok(());
        }
        let patch =
            json!({ "metadata": { "uid": string(object, "/metadata/uid"), "labels": changed } });
        match self
            .workspace
            .http
            .expect(
                Method::PATCH,
                &format!("{path}?fieldManager=kcp"),
                MERGE_PATCH,
                Some(&patch),
            )
            .await
        {
            // Deleted or replaced in the meantime; another event follows.
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
            _ => Ok(()),
        }
    }
}
