//! A certificate authority per cluster, and the key that signs its
//! service-account tokens.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::error::{Error, Result};

/// The names under which a server on loopback is reached.
const SERVER_NAMES: [&str; 4] = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    pub(crate) fn new(cluster: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("testbed {cluster}"));
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    pub(crate) fn pem(&self) -> &str {
        &self.certificate
    }

    /// A serving certificate for loopback.
    pub(crate) fn server_identity(&self) -> Result<Identity> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(SERVER_NAMES.map(str::to_owned)).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// How the proxy serves, so that clients of the cluster trust it.
    pub(crate) fn server_config(&self) -> Result<ServerConfig> {
        let identity = self.server_identity()?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).map_err(failed)?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(failed)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(failed)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Trusts this authority and no other.
    pub(crate) fn client_config(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(failed)?).map_err(failed)?;
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(failed)?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A fresh P-256 key for service-account tokens.
pub(crate) fn token_key() -> Result<KeyPair> {
    KeyPair::generate().map_err(failed)
}

/// Named instead of installed: a process-wide default would reach into the
/// tests that use us.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Certificate(error.to_string())
}
