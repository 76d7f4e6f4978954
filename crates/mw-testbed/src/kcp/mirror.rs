//! Cached copy of the objects of apis.kcp.io in a workspace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::model::{array, string};
use super::world::{Kind, Workspace, World};
use crate::error::Result;
use crate::http::JSON;

/// Delay before an unreachable server is retried.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn run(world: Arc<World>, workspace: Arc<Workspace>, kind: Kind) {
    loop {
        let _ = follow(&world, &workspace, kind).await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow(world: &World, workspace: &Workspace, kind: Kind) -> Result<()> {
    let list = workspace
        .http
        .expect(Method::GET, kind.collection(), JSON, None)
        .await?;
    let named: BTreeMap<String, Value> = array(&list, "/items")
        .iter()
        .map(|object| (name(object), object.clone()))
        .collect();
    world.mirror(&workspace.id, kind, |objects| *objects = named);
    let path = format!(
        "{}?watch=true&resourceVersion={}",
        kind.collection(),
        string(&list, "/metadata/resourceVersion")
    );
    let mut events = workspace.http.watch(&path).await?;
    while let Some(mut event) = events.next().await {
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        match string(&event, "/type") {
            "ADDED" | "MODIFIED" => world.mirror(&workspace.id, kind, |objects| {
                drop(objects.insert(name(&object), object.clone()))
            }),
            "DELETED" => world.mirror(&workspace.id, kind, |objects| {
                drop(objects.remove(&name(&object)))
            }),
            _ => break,
        }
    }
    Ok(())
}

fn name(object: &Value) -> String {
    string(object, "/metadata/name").to_owned()
}
