//! Responses of the front: Statuses, and some plain texts.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::model::{CLUSTER, array, set_metadata, string};
use super::target::Target;
use super::world::User;
use crate::error::Error;
use crate::http::JSON;
use crate::serve::Served;

/// A response that ends the handling of a request.
pub(super) type Refusal = Box<Served>;

pub(super) fn json(code: u16, body: &Value) -> Served {
    respond(code, JSON, Bytes::from(body.to_string()))
}

pub(super) fn text(code: u16, body: &str) -> Refusal {
    Box::new(respond(
        code,
        "text/plain; charset=utf-8",
        Bytes::from(body.to_owned()),
    ))
}

fn respond(code: u16, content: &'static str, body: Bytes) -> Served {
    let mut response = Response::new(
        Full::from(body)
            .map_err(|never| match never {})
            .boxed_unsync(),
    );
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message,
    })
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Refusal {
    Box::new(json(code, &status(code, reason, message)))
}

pub(super) fn unresolved() -> Refusal {
    failure(
        403,
        "Forbidden",
        "Path not resolved to a valid virtual workspace",
    )
}

pub(super) fn no_such_resource() -> Refusal {
    failure(
        404,
        "NotFound",
        "the server could not find the requested resource",
    )
}

/// Returns the 403 of the authorizer.
pub(super) fn forbidden(user: &User, target: &Target) -> Refusal {
    forbidden_because(
        target,
        &format!(
            "User \"{}\" cannot {}: access denied",
            user.name,
            target.asked_for()
        ),
    )
}

pub(super) fn forbidden_because(target: &Target, why: &str) -> Refusal {
    let subject = match (target.what.resource.as_str(), target.name.as_str()) {
        ("", _) => String::new(),
        (_, "") => format!("{} is ", target.what),
        (_, name) => format!("{} {name:?} is ", target.what),
    };
    failure(403, "Forbidden", &format!("{subject}forbidden: {why}"))
}

/// Returns the response for an unreachable workspace.
pub(super) fn unreachable(error: &Error) -> Refusal {
    failure(503, "ServiceUnavailable", &error.to_string())
}

/// A complete response of a workspace's API server.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Bytes,
}

impl Backend {
    pub(super) async fn read(response: Response<Incoming>) -> Result<Self, Refusal> {
        let (parts, body) = response.into_parts();
        let bytes = body
            .collect()
            .await
            .map_err(|error| failure(503, "ServiceUnavailable", &error.to_string()))?
            .to_bytes();
        Ok(Self {
            code: parts.status.as_u16(),
            headers: parts.headers,
            bytes,
        })
    }

    pub(super) fn body(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Returns the response with the cluster added to every object.
    pub(super) fn serve(self, cluster: &str) -> Served {
        let mut body = self.body();
        let bytes = if body.is_object() {
            name_cluster(&mut body, cluster);
            Bytes::from(body.to_string())
        } else {
            self.bytes
        };
        let mut response = respond(self.code, JSON, bytes);
        *response.headers_mut() = self.headers;
        response.headers_mut().remove(CONTENT_LENGTH);
        response
    }
}

/// Adds the ID of the cluster to an object, or to all objects of a list or table.
pub(super) fn name_cluster(body: &mut Value, cluster: &str) {
    let kind = string(body, "/kind").to_owned();
    if matches!(
        kind.as_str(),
        "Status" | "APIResourceList" | "APIGroupList" | "APIGroup" | "APIVersions"
    ) {
        return;
    }
    for list in ["items", "rows"] {
        for item in body
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            name_in_object(item, cluster);
        }
    }
    if !array(body, "/items").is_empty() || kind.ends_with("List") || kind == "Table" {
        return;
    }
    name_in_object(body, cluster);
}

fn name_in_object(item: &mut Value, cluster: &str) {
    let object = if item.get("cells").is_some() {
        item.get_mut("object")
    } else {
        Some(item)
    };
    let Some(object) = object else { return };
    set_metadata(object, "annotations", CLUSTER, cluster);
}

/// Adds the version of the object to partial metadata in a virtual workspace.
pub(super) fn name_version(object: &mut Value, version: &str) {
    if string(object, "/kind") == "PartialObjectMetadata" {
        set_metadata(
            object,
            "annotations",
            "kcp.io/original-api-version",
            version,
        );
    }
}
