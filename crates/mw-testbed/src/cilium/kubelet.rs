//! Stands in for the kubelet: carries the Secrets of kube-system into the
//! volumes of pods. At once, where the kubelet may take a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use hyper::Method;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::volume::{Contents, Layout, Secrets, Volume};
use crate::error::{Error, Result};
use crate::http::{Http, JSON, runtime};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
/// Between two attempts to watch a server that does not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Dropping it ends it: no file is written any more when that returns.
#[derive(Debug)]
pub(super) struct Kubelet {
    volumes: Arc<Mutex<Vec<Mounted>>>,
    task: AbortHandle,
}

/// A volume and where it is laid out.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) volume: Volume,
    pub(super) layout: Layout,
}

impl Kubelet {
    /// The volumes are laid out when this returns.
    pub(super) async fn start(http: &Http, volumes: Vec<Mounted>) -> Result<Self> {
        let (secrets, version) = list(http).await?;
        let volumes = Arc::new(Mutex::new(volumes));
        lay_out(&volumes, &secrets)?;
        let follower = Follower { http: http.clone(), volumes: volumes.clone(), secrets, version };
        let task = runtime()?.spawn(follower.run()).abort_handle();
        Ok(Self { volumes, task })
    }

    /// Files that no Secret holds, until a Secret of that volume changes.
    pub(super) fn replace(&self, volume: &str, files: &Contents) -> Result<()> {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = volumes.iter_mut().filter(|mounted| mounted.volume.name == volume);
        found.try_for_each(|mounted| mounted.layout.lay_out(files)).map_err(failed)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        // The task may be at work: with the lock it has ended or finds nothing.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The files of a volume as of now; nothing if a pod would wait for it.
pub(super) async fn files(http: &Http, volume: &Volume) -> Result<Option<Contents>> {
    Ok(volume.files(&list(http).await?.0))
}

struct Follower {
    http: Http,
    volumes: Arc<Mutex<Vec<Mounted>>>,
    secrets: Secrets,
    version: String,
}

impl Follower {
    /// Watches for ever; after a broken watch all Secrets are listed again.
    async fn run(mut self) {
        loop {
            let _ = self.watch().await;
            tokio::time::sleep(PAUSE).await;
            if let Ok((secrets, version)) = list(&self.http).await {
                (self.secrets, self.version) = (secrets, version);
                let _ = lay_out(&self.volumes, &self.secrets);
            }
        }
    }

    async fn watch(&mut self) -> Result<()> {
        let mut events = self.http.watch(&format!("{SECRETS}?watch=true&resourceVersion={}", self.version)).await?;
        while let Some(event) = events.next().await {
            let Some((name, contents)) = event.get("object").and_then(read) else { continue };
            match event.get("type").and_then(Value::as_str) {
                Some("ADDED" | "MODIFIED") => self.secrets.insert(name, contents),
                Some("DELETED") => self.secrets.remove(&name),
                _ => return Ok(()),
            };
            lay_out(&self.volumes, &self.secrets)?;
        }
        Ok(())
    }
}

async fn list(http: &Http) -> Result<(Secrets, String)> {
    let list = http.expect(Method::GET, SECRETS, JSON, None).await?;
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((list.get("items").and_then(Value::as_array).into_iter().flatten().filter_map(read).collect(), version))
}

fn read(secret: &Value) -> Option<(String, Contents)> {
    let name = secret.pointer("/metadata/name").and_then(Value::as_str)?;
    let data = secret.get("data").and_then(Value::as_object).into_iter().flatten();
    let decoded = data.filter_map(|(key, value)| Some((key.clone(), Base64::decode_vec(value.as_str()?).ok()?)));
    Some((name.to_owned(), decoded.collect()))
}

/// A volume that lacks a Secret stays as it was, as in a pod that runs.
fn lay_out(volumes: &Mutex<Vec<Mounted>>, secrets: &Secrets) -> Result<()> {
    let mut volumes = volumes.lock().unwrap_or_else(PoisonError::into_inner);
    for Mounted { volume, layout } in volumes.iter_mut() {
        if let Some(files) = volume.files(secrets) {
            layout.lay_out(&files).map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: std::io::Error) -> Error {
    Error::Start { program: "kubelet".into(), reason: error.to_string() }
}
