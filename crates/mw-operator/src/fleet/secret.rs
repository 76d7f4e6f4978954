//! The kubeconfig in a Secret.

use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

use crate::fleet::{Credentials, Source};
use crate::kubeconfig::{Access, Allowed, inspect};

/// Keys that are tried where the entry names none.
const KEYS: [&str; 3] = ["value", "kubeconfig", "admin.conf"];

/// The kubeconfig that passed, with a hash to know it again; or why there is
/// none. Never tells what is in the Secret.
pub fn kubeconfig_in(secret: Option<&Secret>, source: &Source, allowed: &Allowed) -> Result<(Access, [u8; 32]), Credentials> {
    let Source::Secret { namespace, name, key } = source else {
        return Err(Credentials::Missing("it is the hub and needs no Secret".to_owned()));
    };
    let place = format!("{namespace}/{name}");
    let Some(secret) = secret else {
        return Err(Credentials::Missing(format!("its Secret {place} does not exist")));
    };
    let keys: Vec<&str> = key.as_deref().map_or(KEYS.to_vec(), |key| vec![key]);
    let Some((key, bytes)) = keys.iter().find_map(|key| Some((*key, secret.data.as_ref()?.get(*key)?))) else {
        return Err(Credentials::Missing(format!("its Secret {place} has none of the keys {}", keys.join(", "))));
    };
    match inspect(&bytes.0, allowed) {
        Ok(access) => Ok((access, Sha256::digest(&bytes.0).into())),
        Err(refusal) => Err(Credentials::Refused(format!("the kubeconfig in its Secret {place}, key {key}, {refusal}"))),
    }
}
