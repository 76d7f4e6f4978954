//! Stand-in for the token controller of kube-controller-manager: fills Secrets of type
//! `kubernetes.io/service-account-token`.
//!
//! As in the real controller, a token is a JWT signed with the cluster's key, it is
//! valid as long as the Secret contains exactly this token, and a Secret without an
//! existing service account is deleted. Unlike the real controller, it does not delete
//! the Secrets of a deleted service account (their tokens are rejected anyway) and does
//! not restore a removed `ca.crt`.
//!
//! The API server caches valid tokens for 10 s, so a revoked token keeps working for up
//! to this time.

use std::time::Duration;

use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use hyper::Method;
use rcgen::KeyPair;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::http::{Http, JSON, MERGE_PATCH};

pub(crate) const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const WATCH: &str =
    "/api/v1/secrets?watch=true&fieldSelector=type%3Dkubernetes.io%2Fservice-account-token";
/// Delay before the watch of an unreachable server is retried.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct TokenController {
    http: Http,
    ca: String,
    signer: EcdsaKeyPair,
    random: SystemRandom,
}

impl TokenController {
    pub(crate) fn new(http: Http, ca: &str, key: &KeyPair) -> Result<Self> {
        let random = SystemRandom::new();
        let signer = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            &key.serialize_der(),
            &random,
        )
        .map_err(|error| Error::Sign(error.to_string()))?;
        Ok(Self {
            http,
            ca: ca.to_owned(),
            signer,
            random,
        })
    }

    /// Watches forever. A broken watch restarts with all Secrets.
    pub(crate) async fn run(self) {
        loop {
            let _ = self.watch().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn watch(&self) -> Result<()> {
        let mut events = self.http.watch(WATCH).await?;
        while let Some(event) = events.next().await {
            // A conflict is followed by another event for the same Secret.
            let _ = self.handle(&event).await;
        }
        Ok(())
    }

    async fn handle(&self, event: &Value) -> Result<()> {
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let filled = event.pointer("/object/data/token").is_some();
        if filled || !matches!(text("/type"), "ADDED" | "MODIFIED") {
            return Ok(());
        }
        let (namespace, name) = (
            text("/object/metadata/namespace"),
            text("/object/metadata/name"),
        );
        let annotations = event.pointer("/object/metadata/annotations");
        let account = annotations
            .and_then(|all| all.get(ACCOUNT_NAME))
            .and_then(Value::as_str)
            .unwrap_or_default();
        let seen = json!({ "uid": text("/object/metadata/uid"), "resourceVersion": text("/object/metadata/resourceVersion") });
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let found = self
            .http
            .send(
                Method::GET,
                &format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}"),
                JSON,
                None,
            )
            .await?;
        if found.code == 404 {
            self.http
                .expect(
                    Method::DELETE,
                    &path,
                    JSON,
                    Some(&json!({ "preconditions": seen })),
                )
                .await?;
            return Ok(());
        }
        let uid = found
            .body
            .pointer("/metadata/uid")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let token = self.sign(namespace, name, account, uid)?;
        let mut patch = json!({ "metadata": seen, "data": {
            "token": Base64::encode_string(token.as_bytes()),
            "ca.crt": Base64::encode_string(self.ca.as_bytes()),
            "namespace": Base64::encode_string(namespace.as_bytes()),
        }});
        if let Some(metadata) = patch
            .pointer_mut("/metadata")
            .and_then(Value::as_object_mut)
        {
            metadata.insert("annotations".into(), json!({ ACCOUNT_UID: uid }));
        }
        self.http
            .expect(Method::PATCH, &path, MERGE_PATCH, Some(&patch))
            .await
            .map(drop)
    }

    /// Returns a token that is bound to a Secret and does not expire.
    fn sign(&self, namespace: &str, secret: &str, account: &str, uid: &str) -> Result<String> {
        let header = json!({ "alg": "ES256", "typ": "JWT" });
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": account,
            "kubernetes.io/serviceaccount/service-account.uid": uid,
        });
        let encode = |part: &Value| Base64UrlUnpadded::encode_string(part.to_string().as_bytes());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self
            .signer
            .sign(&self.random, signed.as_bytes())
            .map_err(|error| Error::Sign(error.to_string()))?;
        Ok(format!(
            "{signed}.{}",
            Base64UrlUnpadded::encode_string(signature.as_ref())
        ))
    }
}
