//! The kubeconfig in a Secret.

use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};

use crate::fleet::{Credentials, Source};
use crate::kubeconfig::{Access, Allowed, inspect};

/// Keys that the operator tries if the source names none, in the order of the Go operator.
pub const OPERATOR_KEYS: [&str; 3] = ["value", "kubeconfig", "admin.conf"];
/// Keys that the provider tries if the source names none, in the order of the Go provider.
pub const PROVIDER_KEYS: [&str; 2] = ["kubeconfig", "value"];

/// Reason why a Secret yields no credentials. Never contains data of the Secret.
#[derive(Debug)]
pub enum Unusable {
    Missing(String),
    Refused(String),
}

/// Returns the validated kubeconfig in the data of a Secret, with its hash. If the source
/// names no key, the others are tried in order.
pub fn kubeconfig_in<'a>(
    data: impl Fn(&str) -> Option<&'a [u8]>,
    source: &Source,
    otherwise: &[&str],
    allowed: &Allowed,
) -> Result<(Access, [u8; 32]), Unusable> {
    let place = source.object();
    let keys = match source {
        Source::Secret { key: Some(key), .. } => vec![key.as_str()],
        _ => otherwise.to_vec(),
    };
    let Some((key, bytes)) = keys.iter().find_map(|key| Some((key, data(key)?))) else {
        return Err(Unusable::Missing(format!(
            "Secret {place} has none of the keys {}",
            keys.join(", ")
        )));
    };
    match inspect(bytes, allowed) {
        Ok(access) => Ok((access, Sha256::digest(bytes).into())),
        Err(refusal) => Err(Unusable::Refused(format!(
            "kubeconfig in Secret {place} (key {key}) refused: {refusal}"
        ))),
    }
}

/// Returns the validated kubeconfig of a Secret of the operator, which may be missing.
pub fn kubeconfig_of(
    secret: Option<&Secret>,
    source: &Source,
    allowed: &Allowed,
) -> Result<(Access, [u8; 32]), Credentials> {
    let Some(secret) = secret else {
        return Err(Credentials::Missing(format!(
            "Secret {} not found",
            source.object()
        )));
    };
    let data = |key: &str| {
        secret
            .data
            .as_ref()?
            .get(key)
            .map(|bytes| bytes.0.as_slice())
    };
    kubeconfig_in(data, source, &OPERATOR_KEYS, allowed).map_err(|unusable| match unusable {
        Unusable::Missing(why) => Credentials::Missing(why),
        Unusable::Refused(why) => Credentials::Refused(why),
    })
}
