//! A kubeconfig Secret: which of its keys counts, and whether it may be used.

use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

use crate::fleet::{Credentials, Source};
use crate::kubeconfig::{Access, Allowed, inspect};

/// Keys that are tried where the entry names none.
const KEYS: [&str; 3] = ["value", "kubeconfig", "admin.conf"];

/// Access with the kubeconfig in a Secret, and a hash of it; or why there is
/// none.
pub fn access_in(secret: Option<&Secret>, source: &Source, allowed: Allowed) -> Result<(Access, [u8; 32]), Credentials> {
    let (place, key) = match source {
        Source::Secret { namespace, name, key } => (format!("{namespace}/{name}"), key.as_deref()),
        Source::Hub => (source.to_string(), None),
    };
    let Some(secret) = secret else { return Err(Credentials::Missing(format!("its Secret {place} does not exist"))) };
    let Some((key, bytes)) = kubeconfig_in(secret, key) else {
        let keys = key.map_or_else(|| KEYS.join(", "), str::to_owned);
        return Err(Credentials::Missing(format!("its Secret {place} has none of the keys {keys}")));
    };
    let access = inspect(bytes, allowed);
    let access = access.map_err(|refusal| Credentials::Refused(format!("the kubeconfig in its Secret {place}, key {key}, {refusal}")))?;
    Ok((access, Sha256::digest(bytes).into()))
}

fn kubeconfig_in<'a>(secret: &'a Secret, key: Option<&'a str>) -> Option<(&'a str, &'a [u8])> {
    let data = secret.data.as_ref()?;
    let tried = |key: &'a str| Some((key, data.get(key)?.0.as_slice()));
    match key {
        Some(key) => tried(key),
        None => KEYS.into_iter().find_map(tried),
    }
}
