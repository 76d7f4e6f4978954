//! Raw objects: get, list, create, apply, patch, delete, and CRDs.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::http::{APPLY_PATCH, Answer, JSON, MERGE_PATCH};
use crate::wait::eventually;

const CRD_DEADLINE: Duration = Duration::from_secs(30);

impl Cluster {
    /// Sends a request as `admin`. All status codes are accepted. PATCH is a merge
    /// patch.
    pub async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        self.http.request(method, path, body).await
    }

    /// Like `request`, with another bearer token.
    pub async fn request_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        self.http
            .with_token(token)
            .request(method, path, body)
            .await
    }

    /// Returns status code and text of a path that is not an object, e.g. the response
    /// of a pod through the API server, with another bearer token.
    pub async fn text_as(&self, token: &str, path: &str) -> Result<(u16, String)> {
        self.http.with_token(token).text(path).await
    }

    /// Returns the object at a path, e.g. `/api/v1/nodes/a`.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.http.expect(Method::GET, path, JSON, None).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the items of a collection, e.g. `/api/v1/nodes`.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>> {
        let mut list = self.http.expect(Method::GET, path, JSON, None).await?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Err(Error::Object(format!("{path} is not a list"))),
        }
    }

    /// Creates an object. Fails if it exists (409).
    pub async fn create(&self, object: &Value) -> Result<Value> {
        let (collection, _) = self.paths_of(object).await?;
        self.http
            .expect(Method::POST, &collection, JSON, Some(object))
            .await
    }

    /// Creates or changes an object by forced server-side apply as field manager
    /// `testbed`.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let (_, path) = self.paths_of(object).await?;
        let path = format!("{path}?fieldManager=testbed&force=true&fieldValidation=Strict");
        self.http
            .expect(Method::PATCH, &path, APPLY_PATCH, Some(object))
            .await
    }

    /// Applies all documents of a YAML text, in order.
    pub async fn apply_yaml(&self, text: &str) -> Result<Vec<Value>> {
        let mut applied = Vec::new();
        for object in documents(text)? {
            applied.push(self.apply(&object).await?);
        }
        Ok(applied)
    }

    /// Sends a merge patch. For the status, the path must end with `/status`.
    pub async fn merge_patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.http
            .expect(Method::PATCH, path, MERGE_PATCH, Some(patch))
            .await
    }

    /// Deletes an object. A missing object is not an error.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.http.expect(Method::DELETE, path, JSON, None).await {
            Err(error) if error.code() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }

    /// Installs CRDs and waits until each served version can be listed.
    pub async fn install_crd(&self, yaml: &str) -> Result<()> {
        for crd in self.apply_yaml(yaml).await? {
            let name = text(&crd, "/metadata/name")?;
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            eventually(CRD_DEADLINE, || async {
                let crd = self
                    .get(&path)
                    .await
                    .map_err(|error| error.to_string())?
                    .unwrap_or_default();
                if is_established(&crd) {
                    Ok(())
                } else {
                    Err(format!(
                        "{name} is not Established: {:?}",
                        crd.get("status")
                    ))
                }
            })
            .await?;
            self.wait_served(&crd).await?;
        }
        Ok(())
    }

    /// Waits until a CRD is served: Established means only that its names are accepted;
    /// the handler follows.
    async fn wait_served(&self, crd: &Value) -> Result<()> {
        let (group, plural) = (text(crd, "/spec/group")?, text(crd, "/spec/names/plural")?);
        let versions = crd
            .pointer("/spec/versions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for version in versions.iter().filter(|version| version["served"] == true) {
            let path = format!("/apis/{group}/{}/{plural}?limit=1", text(version, "/name")?);
            eventually(CRD_DEADLINE, || self.list(&path)).await?;
        }
        Ok(())
    }

    /// Returns the paths of an object's collection and of the object.
    async fn paths_of(&self, object: &Value) -> Result<(String, String)> {
        let (version, kind) = (text(object, "/apiVersion")?, text(object, "/kind")?);
        let (plural, namespaced) = self.kind(version, kind).await?;
        let root = if version.contains('/') {
            format!("/apis/{version}")
        } else {
            format!("/api/{version}")
        };
        let collection = if namespaced {
            let namespace = text(object, "/metadata/namespace").unwrap_or("default");
            format!("{root}/namespaces/{namespace}/{plural}")
        } else {
            format!("{root}/{plural}")
        };
        let path = match text(object, "/metadata/name") {
            Ok(name) => format!("{collection}/{name}"),
            Err(_) => collection.clone(), // generateName, for `create`
        };
        Ok((collection, path))
    }

    /// Returns plural and scope of a kind, from discovery.
    async fn kind(&self, version: &str, kind: &str) -> Result<(String, bool)> {
        let key = (version.to_owned(), kind.to_owned());
        if let Some(known) = self
            .kinds
            .lock()
            .ok()
            .and_then(|kinds| kinds.get(&key).cloned())
        {
            return Ok(known);
        }
        let path = if version.contains('/') {
            format!("/apis/{version}")
        } else {
            format!("/api/{version}")
        };
        let list = self.http.expect(Method::GET, &path, JSON, None).await?;
        let resources = list
            .get("resources")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let found = resources
            .iter()
            .find(|resource| {
                resource["kind"] == kind
                    && resource["name"]
                        .as_str()
                        .is_some_and(|name| !name.contains('/'))
            })
            .ok_or_else(|| {
                Error::Object(format!("{} does not serve {version} {kind}", self.name()))
            })?;
        let known = (
            text(found, "/name")?.to_owned(),
            found["namespaced"] == true,
        );
        if let Ok(mut kinds) = self.kinds.lock() {
            kinds.insert(key, known.clone());
        }
        Ok(known)
    }
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|all| {
        all.iter()
            .any(|one| one["type"] == "Established" && one["status"] == "True")
    })
}

fn documents(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).map_err(|error| Error::Object(error.to_string()))
}

/// Returns a required string of an object.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .ok_or_else(|| Error::Object(format!("no {pointer} in {object}")))
}
