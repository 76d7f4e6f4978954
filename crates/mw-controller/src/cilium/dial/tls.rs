//! TLS as etcd's own client does it, with one CA file and one client
//! certificate, and messages for failed handshakes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff;
use mw_core::cilium::facts::ClientFiles;
use mw_core::cilium::world::DialFailure;
use mw_core::text::{listed, printable};
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use super::{Failed, LONGEST, Target};
use crate::clock::Clock;

/// ALPN protocol that gRPC requires.
const HTTP_2: &[u8] = b"h2";

#[derive(Debug)]
struct Wall(Clock);

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().0).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

pub(super) fn config(files: &ClientFiles, clock: Clock) -> Result<Arc<ClientConfig>, Failed> {
    let certificates = |file: &[u8]| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(file).flatten().collect()
    };
    let mut roots = RootCertStore::empty();
    if roots
        .add_parsable_certificates(certificates(files.ca.expose()))
        .0
        == 0
    {
        return Err(unusable("the CA file contains no certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(files.key.expose())
        .map_err(|_| unusable("the key file contains no private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(Wall(clock)))
        .with_safe_default_protocol_versions()
        .map_err(|wrong| Failed::new(DialFailure::Tls, wrong.to_string()))?;
    let chain = certificates(files.certificate.expose());
    let mut config = builder
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|wrong| match wrong {
            Error::InconsistentKeys(_) => unusable("the certificate and the key do not match"),
            wrong => unusable(&wrong.to_string()),
        })?;
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    Ok(Arc::new(config))
}

fn unusable(why: &str) -> Failed {
    Failed::new(
        DialFailure::Certificate,
        format!("cannot use the client certificate: {why}; reissue it"),
    )
}

/// Explains a failed handshake.
pub(super) fn failed(target: &Target, wrong: &io::Error) -> Failed {
    let inner = wrong
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    let tls = |text: String| Failed::new(DialFailure::Tls, text);
    match inner {
        Some(Error::InvalidCertificate(why)) => {
            Failed::new(DialFailure::Certificate, untrusted(target, why))
        }
        Some(Error::AlertReceived(alert)) if is_about_certificates(*alert) => {
            mistrusted(target, &format!("rejects it ({alert:?})"))
        }
        Some(Error::InvalidMessage(_)) => tls(format!(
            "{target} does not speak TLS; check that etcd listens there"
        )),
        Some(wrong) => {
            let wrong = printable(&wrong.to_string(), LONGEST);
            tls(format!(
                "TLS handshake with {target} failed: {wrong}; check that etcd listens there"
            ))
        }
        None => tls(format!(
            "{target} aborts the TLS handshake: {wrong}; check that etcd listens there"
        )),
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
    )
}

/// Explains why the server's certificate is rejected.
fn untrusted(target: &Target, why: &CertificateError) -> String {
    let date = |time: &UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        jiff::Timestamp::from_second(seconds)
            .map_or_else(|_| format!("second {seconds}"), |time| time.to_string())
    };
    match why {
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "the certificate of {target} is not valid for {}, only for {}; reissue it for that name \
             (clustermesh.apiserver.tls.auto.server.extraDnsNames or extraIpAddresses; before 1.20 without auto)",
            expected.to_str(),
            listed(
                &presented.iter().map(|name| plain(name)).collect::<Vec<_>>(),
                10
            ),
        ),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!(
                "the certificate of {target} expired at {}; reissue it, e.g. with helm upgrade",
                date(not_after)
            )
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!(
                "the certificate of {target} is not valid before {}; check the clocks on both sides",
                date(not_before)
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {target} is issued by a CA that is not in the client's ca.crt; \
             check that this address belongs to the right cluster and that all its certificates come from one CA"
        ),
        why => format!(
            "the certificate of {target} is not trusted: {}; reissue it",
            printable(&why.to_string(), LONGEST)
        ),
    }
}

/// Name as written in the certificate; rustls reports it as `DnsName("a")`.
fn plain(name: &str) -> String {
    let inner = name.split_once('(').map_or(name, |(_, inner)| {
        inner.trim_end_matches(')').trim_matches('"')
    });
    printable(inner, 80)
}

/// Explains that the server does not accept the client certificate: it does
/// `what` after the handshake, in the worst case nothing.
pub(super) fn mistrusted(target: &Target, what: &str) -> Failed {
    let text = format!(
        "{target} receives the client certificate and {what}; \
         check that it has not expired and that clustermesh-apiserver there trusts its CA (ca.crt of its server certificate)"
    );
    Failed::new(DialFailure::Certificate, text)
}
