//! Certificates of an installation, like those of Helm or certgen.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{AuthMode, CiliumSpec};
use crate::error::Result;
use crate::pki::Authority;

pub(super) const SERVER: &str = "clustermesh-apiserver-server-cert";
pub(super) const REMOTE: &str = "clustermesh-apiserver-remote-cert";
pub(super) const LOCAL: &str = "clustermesh-apiserver-local-cert";
pub(super) const ADMIN: &str = "clustermesh-apiserver-admin-cert";

/// Common name of every CA that Helm creates; only the keys differ.
const CA_NAME: &str = "Cilium CA";
const SERVER_NAME: &str = "clustermesh-apiserver.cilium.io";
/// Name of the Service inside the cluster, used by clients in the same pod.
pub(super) const SERVICE_NAME: &str = "clustermesh-apiserver.kube-system.svc";
const LIFETIME: Duration = Duration::from_secs(3 * 365 * 24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// A CA, of one or more clusters.
#[derive(Debug, Clone)]
pub struct Ca(Arc<Authority>);

impl Ca {
    pub fn new() -> Result<Self> {
        Authority::new(CA_NAME).map(|authority| Self(Arc::new(authority)))
    }

    pub fn pem(&self) -> &str {
        self.0.pem()
    }

    /// Returns the private key of the CA, as stored in the Secret cilium-ca.
    pub fn key(&self) -> String {
        self.0.key()
    }

    /// Issues a certificate that is valid for three years.
    pub fn issue(&self, common_name: &str, names: &[String]) -> Result<Files> {
        self.issue_until(common_name, names, SystemTime::now() + LIFETIME)
    }

    /// Issues a certificate that expires, or has expired, at this time.
    pub fn issue_until(
        &self,
        common_name: &str,
        names: &[String],
        end: SystemTime,
    ) -> Result<Files> {
        let start = end.min(SystemTime::now()) - HOUR;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let identity = self.0.issue_for(common_name, &names, start..end)?;
        Ok(Files {
            ca: self.pem().to_owned(),
            certificate: identity.certificate,
            key: identity.key,
        })
    }
}

/// Content of a Secret of type kubernetes.io/tls.
#[derive(Clone, PartialEq, Eq)]
pub struct Files {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

impl Files {
    /// Returns the files by the keys of the Secret.
    pub(super) fn by_key(&self) -> BTreeMap<&'static str, &str> {
        [
            ("ca.crt", self.ca.as_str()),
            ("tls.crt", &self.certificate),
            ("tls.key", &self.key),
        ]
        .into()
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

/// Returns the names and addresses in a server certificate of the chart.
pub(super) fn server_names(addresses: &[IpAddr], more: &[String]) -> Vec<String> {
    let chart = [
        SERVER_NAME,
        "*.mesh.cilium.io",
        SERVICE_NAME,
        "127.0.0.1",
        "::1",
    ]
    .map(str::to_owned);
    chart
        .into_iter()
        .chain(addresses.iter().map(IpAddr::to_string))
        .chain(more.iter().cloned())
        .collect()
}

/// Issues the certificates of all Secrets. `ca.crt` contains the CA and all
/// additionally trusted CAs.
pub(super) fn issue(
    ca: &Ca,
    spec: &CiliumSpec,
    cluster: &str,
    server: &[String],
    end: Option<SystemTime>,
) -> Result<BTreeMap<&'static str, Files>> {
    let end = end.unwrap_or_else(|| SystemTime::now() + LIFETIME);
    let bundle: String = std::iter::once(ca)
        .chain(&spec.trusted)
        .map(Ca::pem)
        .collect();
    let issue = |common_name: &str, names: &[String]| {
        Ok(Files {
            ca: bundle.clone(),
            ..ca.issue_until(common_name, names, end)?
        })
    };
    let remote = if spec.auth_mode == AuthMode::Cluster {
        format!("remote-{cluster}")
    } else {
        "remote".to_owned()
    };
    Ok(BTreeMap::from([
        (SERVER, issue(SERVER_NAME, server)?),
        (REMOTE, issue(&remote, &[])?),
        (LOCAL, issue(&format!("local-{cluster}"), &[])?),
        (
            ADMIN,
            issue(&format!("admin-{cluster}"), &["localhost".to_owned()])?,
        ),
    ]))
}
