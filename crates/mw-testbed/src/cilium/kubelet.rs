//! Stand-in for the kubelet: copies Secrets and ConfigMaps of kube-system into the volumes
//! of pods, immediately, where the kubelet may take a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use hyper::Method;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::volume::{Contents, Kind, Layout, Objects, Volume};
use crate::error::{Error, Result};
use crate::http::{Http, JSON, runtime};

/// Delay before the watch of an unreachable server is retried.
const PAUSE: Duration = Duration::from_millis(50);

/// A running kubelet. No file is written after it is dropped.
#[derive(Debug)]
pub(super) struct Kubelet {
    volumes: Arc<Mutex<Vec<Mounted>>>,
    tasks: Vec<AbortHandle>,
}

/// A volume and its folder.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) volume: Volume,
    pub(super) layout: Layout,
}

impl Kubelet {
    /// Starts the kubelet. The volumes are written when this returns.
    pub(super) async fn start(http: &Http, volumes: Vec<Mounted>) -> Result<Self> {
        let volumes = Arc::new(Mutex::new(volumes));
        let mut kubelet = Self {
            volumes: volumes.clone(),
            tasks: Vec::new(),
        };
        for kind in [Kind::Secrets, Kind::ConfigMaps] {
            let (objects, version) = list(http, kind).await?;
            lay_out(&volumes, kind, &objects)?;
            let follower = Follower {
                kind,
                http: http.clone(),
                volumes: volumes.clone(),
                objects,
                version,
            };
            kubelet
                .tasks
                .push(runtime()?.spawn(follower.run()).abort_handle());
        }
        Ok(kubelet)
    }

    /// Replaces the files of a volume, until the next change of any Secret restores them.
    pub(super) fn replace(&self, volume: &str, files: &Contents) -> Result<()> {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = volumes
            .iter_mut()
            .filter(|mounted| mounted.volume.name == volume);
        found
            .try_for_each(|mounted| mounted.layout.lay_out(files))
            .map_err(failed)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        // A task may still be running: once this has the lock, it has either written
        // its files or finds no volumes.
        self.volumes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// Returns the current files of a volume; `None` if a pod would wait for it.
pub(super) async fn files(http: &Http, volume: &Volume) -> Result<Option<Contents>> {
    Ok(volume.files(&list(http, volume.kind).await?.0))
}

struct Follower {
    kind: Kind,
    http: Http,
    volumes: Arc<Mutex<Vec<Mounted>>>,
    objects: Objects,
    version: String,
}

impl Follower {
    /// Watches forever. A broken watch restarts with a list of all objects.
    async fn run(mut self) {
        loop {
            let _ = self.watch().await;
            tokio::time::sleep(PAUSE).await;
            if let Ok((objects, version)) = list(&self.http, self.kind).await {
                (self.objects, self.version) = (objects, version);
                let _ = lay_out(&self.volumes, self.kind, &self.objects);
            }
        }
    }

    async fn watch(&mut self) -> Result<()> {
        let mut events = self
            .http
            .watch(&format!(
                "{}?watch=true&resourceVersion={}",
                path(self.kind),
                self.version
            ))
            .await?;
        while let Some(event) = events.next().await {
            let Some((name, contents)) = event
                .get("object")
                .and_then(|object| read(self.kind, object))
            else {
                continue;
            };
            match event.get("type").and_then(Value::as_str) {
                Some("ADDED" | "MODIFIED") => self.objects.insert(name, contents),
                Some("DELETED") => self.objects.remove(&name),
                _ => return Ok(()),
            };
            lay_out(&self.volumes, self.kind, &self.objects)?;
        }
        Ok(())
    }
}

fn path(kind: Kind) -> &'static str {
    match kind {
        Kind::Secrets => "/api/v1/namespaces/kube-system/secrets",
        Kind::ConfigMaps => "/api/v1/namespaces/kube-system/configmaps",
    }
}

async fn list(http: &Http, kind: Kind) -> Result<(Objects, String)> {
    let list = http.expect(Method::GET, path(kind), JSON, None).await?;
    let version = list
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let items = list
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    Ok((
        items.filter_map(|object| read(kind, object)).collect(),
        version,
    ))
}

fn read(kind: Kind, object: &Value) -> Option<(String, Contents)> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str)?;
    let data = object
        .get("data")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let decode = |text: &str| match kind {
        Kind::Secrets => Base64::decode_vec(text).ok(),
        Kind::ConfigMaps => Some(text.as_bytes().to_vec()),
    };
    let decoded = data.filter_map(|(key, value)| Some((key.clone(), decode(value.as_str()?)?)));
    Some((name.to_owned(), decoded.collect()))
}

/// Updates the volumes. A volume whose object is missing is unchanged, like in a
/// running pod.
fn lay_out(volumes: &Mutex<Vec<Mounted>>, kind: Kind, objects: &Objects) -> Result<()> {
    let mut volumes = volumes.lock().unwrap_or_else(PoisonError::into_inner);
    for Mounted { volume, layout } in volumes
        .iter_mut()
        .filter(|mounted| mounted.volume.kind == kind)
    {
        if let Some(files) = volume.files(objects) {
            layout.lay_out(&files).map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: std::io::Error) -> Error {
    Error::Start {
        program: "kubelet".into(),
        reason: error.to_string(),
    }
}
