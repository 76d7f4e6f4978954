//! Certificate authorities, the certificates they issue, and the signing key of
//! service-account tokens.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};

use crate::error::{Error, Result};

/// Names and addresses of a server on loopback.
const SERVER_NAMES: [&str; 4] = [
    "127.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
];

/// A certificate and its key, in PEM.
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
    /// Creates an authority. Two with the same name have equal subjects and different
    /// keys.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params
            .distinguished_name
            .push(DnType::CommonName, format!("testbed {name}"));
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    pub fn pem(&self) -> &str {
        &self.certificate
    }

    /// Issues a serving certificate for loopback.
    pub(crate) fn server_identity(&self) -> Result<Identity> {
        let mut params = params("kube-apiserver", &SERVER_NAMES)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// Issues a certificate for a server or client. `names` may contain addresses.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> Result<Identity> {
        self.sign(&params(common_name, names)?)
    }

    /// Issues a certificate that was only valid in the year 2000.
    pub fn issue_expired(&self, common_name: &str, names: &[&str]) -> Result<Identity> {
        let mut params = params(common_name, names)?;
        (params.not_before, params.not_after) =
            (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        self.sign(&params)
    }

    /// Issues a certificate with this validity, with an authority key identifier like
    /// those of Helm.
    pub(crate) fn issue_for(
        &self,
        common_name: &str,
        names: &[&str],
        time: Range<SystemTime>,
    ) -> Result<Identity> {
        let mut params = params(common_name, names)?;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (time.start.into(), time.end.into());
        self.sign(&params)
    }

    /// Returns the private key of the authority, in PEM.
    pub(crate) fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    fn sign(&self, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        Ok(Identity {
            certificate,
            key: key.serialize_pem(),
        })
    }

    /// Returns the TLS configuration of a server on loopback, such as the proxy, that
    /// clients of this authority trust.
    pub(crate) fn server_config(&self) -> Result<ServerConfig> {
        let identity = self.server_identity()?;
        let certificate =
            CertificateDer::from_pem_slice(identity.certificate.as_bytes()).map_err(failed)?;
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

    /// Returns a configuration that trusts only this authority.
    pub(crate) fn client_config(&self) -> Result<ClientConfig> {
        Ok(trusting(&self.certificate)?.with_no_client_auth())
    }

    /// Like `client_config`, for a client with a certificate.
    pub(crate) fn client_config_of(&self, client: &Identity) -> Result<ClientConfig> {
        client_config(&self.certificate, &client.certificate, &client.key)
    }
}

/// Returns the configuration of a client with a certificate that trusts the authorities
/// in a PEM text.
pub(crate) fn client_config(
    authorities: &str,
    certificate: &str,
    key: &str,
) -> Result<ClientConfig> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(failed)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(failed)?;
    trusting(authorities)?
        .with_client_auth_cert(vec![certificate], key)
        .map_err(failed)
}

fn trusting(authorities: &str) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.map_err(failed)?).map_err(failed)?;
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    Ok(builder.with_root_certificates(roots))
}

fn params(common_name: &str, names: &[&str]) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    Ok(params)
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Generates a P-256 key for service-account tokens.
pub(crate) fn token_key() -> Result<KeyPair> {
    KeyPair::generate().map_err(failed)
}

/// Returns the crypto provider. It is not installed as the process-wide default, which
/// would affect the tests.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Certificate(error.to_string())
}
