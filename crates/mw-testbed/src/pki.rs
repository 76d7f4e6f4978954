//! Certificate authorities, what they issue, and the key that signs a cluster's
//! service-account tokens.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};

use crate::error::{Error, Result};

/// The names under which a server on loopback is reached.
const SERVER_NAMES: [&str; 4] = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Two of one name have the same subject and different keys.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("testbed {name}"));
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    pub fn pem(&self) -> &str {
        &self.certificate
    }

    /// A serving certificate for loopback.
    pub(crate) fn server_identity(&self) -> Result<Identity> {
        let mut params = params("kube-apiserver", &SERVER_NAMES)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// For a server or a client; `names` may be addresses too.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> Result<Identity> {
        self.sign(&params(common_name, names)?)
    }

    /// The same, but it was good in the year 2000 only.
    pub fn issue_expired(&self, common_name: &str, names: &[&str]) -> Result<Identity> {
        let mut params = params(common_name, names)?;
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        self.sign(&params)
    }

    /// The same, good for some time only, and made as Helm makes them: it says
    /// which key signed it.
    pub(crate) fn issue_for(&self, common_name: &str, names: &[&str], time: Range<SystemTime>) -> Result<Identity> {
        let mut params = params(common_name, names)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (time.start.into(), time.end.into());
        self.sign(&params)
    }

    /// The authority's own key, as PEM.
    pub(crate) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    fn sign(&self, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate().map_err(failed)?;
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
        Ok(trusting(&self.certificate)?.with_no_client_auth())
    }

    /// The same, for a client that shows a certificate.
    pub(crate) fn client_config_of(&self, client: &Identity) -> Result<ClientConfig> {
        client_config(&self.certificate, &client.certificate, &client.key)
    }
}

/// A client that trusts the authorities of a text and shows a certificate.
pub(crate) fn client_config(authorities: &str, certificate: &str, key: &str) -> Result<ClientConfig> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(failed)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
    trusting(authorities)?.with_client_auth_cert(vec![certificate], key).map_err(failed)
}

fn trusting(authorities: &str) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.map_err(failed)?).map_err(failed)?;
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(failed)?;
    Ok(builder.with_root_certificates(roots))
}

fn params(common_name: &str, names: &[&str]) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
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
