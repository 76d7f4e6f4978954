//! `pods/proxy`: GET requests that the API server forwards to a pod.

use serde_json::Value;

use crate::account::Account;
use crate::answer::Answer;
use crate::cluster::State;
use crate::json::at;
use crate::path::Target;
use crate::refusal::Refusal;
use crate::request::{Request, Verb};

/// HTTP servers that run in pods.
pub trait Pods: Send + Sync {
    /// Returns the response to a GET of a path like `/metrics`; `None` if the port is
    /// closed.
    fn get(&self, pod: &Value, port: &str, path: &str) -> Option<String>;
}

/// A proxy request to a pod.
#[derive(Debug)]
pub(crate) struct Call {
    pod: std::sync::Arc<Value>,
    port: String,
    path: String,
}

impl Call {
    pub(crate) fn make(&self, pods: Option<&dyn Pods>) -> Result<Answer, Refusal> {
        match pods.and_then(|pods| pods.get(&self.pod, &self.port, &self.path)) {
            Some(text) => Ok(Answer::new(200, text.into())),
            None => {
                let host = at(&self.pod, &["status", "podIP"])
                    .as_str()
                    .unwrap_or_default();
                let why = format!(
                    "error trying to reach service: dial tcp {host}:{}: connect: connection refused",
                    self.port
                );
                Err(Refusal::new(503, "ServiceUnavailable", why))
            }
        }
    }
}

/// Returns the proxy request; `None` if the API server handles the request itself.
pub(crate) fn call(
    state: &State,
    account: &Account,
    request: &Request,
) -> Result<Option<Call>, Refusal> {
    let Some((target, path)) = request
        .target
        .as_ref()
        .and_then(|target| Some((target, target.beyond.as_ref()?)))
    else {
        return Ok(None);
    };
    if !(target.group.is_empty() && target.plural == "pods") || request.verb != Verb::Get {
        return Err(Refusal::unsupported(format!(
            "{} {}",
            request.method,
            request.path()
        )));
    }
    account.check(request.verb, target)?;
    let name = target.name.as_deref().unwrap_or_default();
    let (name, port) = match name.split(':').collect::<Vec<_>>().as_slice() {
        [name, port] => ((*name).to_owned(), (*port).to_owned()),
        _ => {
            return Err(Refusal::unsupported(
                "the proxy of a pod without a port, or with a scheme",
            ));
        }
    };
    let all = state
        .collection("", "pods")
        .ok_or_else(Refusal::no_such_resource)?;
    let key = crate::cluster::key(&Target {
        name: Some(name.clone()),
        ..target.clone()
    })
    .unwrap_or_default();
    let pod = all
        .objects
        .get(key.as_str())
        .ok_or_else(|| Refusal::not_found(&all.kind, &name))?;
    if at(&pod.value, &["status", "podIP"])
        .as_str()
        .unwrap_or_default()
        .is_empty()
    {
        return Err(Refusal::bad_request("address not allowed"));
    }
    Ok(Some(Call {
        pod: std::sync::Arc::clone(&pod.value),
        port,
        path: path.clone(),
    }))
}
