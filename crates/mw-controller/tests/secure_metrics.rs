//! Metrics over HTTPS against a real API server, with exactly the shipped role.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mw_controller::kubeconfig::{Allowed, config, inspect};
use mw_controller::metrics::Metrics;
use mw_controller::permit::Permit;
use mw_controller::secure::{Gate, acceptor, serve};
use mw_controller::transport::{Rules, Timeouts, client};
use mw_core::names::ClusterId;
use mw_testbed::{Cluster, Testbed, eventually};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const NAMESPACE: &str = "kilo-system";
const OPERATOR: &str = "meshwright-operator";

/// Accepts any certificate whose key the server has, like `insecureSkipVerify`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the response to a GET of /metrics with this token.
async fn fetch(address: std::net::SocketAddr, token: Option<&str>) -> String {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("meshwright").unwrap(), stream)
        .await
        .unwrap();
    let authorization = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    stream
        .write_all(
            format!("GET /metrics HTTP/1.1\r\nHost: meshwright\r\n{authorization}\r\n").as_bytes(),
        )
        .await
        .unwrap();
    let mut answer = Vec::new();
    // The server may close without a TLS close_notify.
    _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn code(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {answer}"))
}

async fn as_account(hub: &Cluster, name: &str) -> Client {
    let token = hub.request_token(NAMESPACE, name, 3600).await.unwrap();
    let access = inspect(
        hub.kubeconfig(hub.url(), &token).as_bytes(),
        &Allowed::default(),
    )
    .unwrap();
    let config = config(&access, &Allowed::default()).await.unwrap();
    let rules = Rules {
        timeouts: Timeouts::of(Duration::from_secs(3)),
        permit: Permit::always(),
        metrics: Metrics::default().of_cluster(&ClusterId::from("hub")),
    };
    client(config, rules).unwrap()
}

async fn account(hub: &Cluster, name: &str) {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    hub.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_role_lets_those_read_metrics_who_may_get_the_url() {
    let Some(bed) = Testbed::start_or_skip(&["hub"]).await else {
        return;
    };
    let hub = bed.cluster("hub").unwrap();
    hub.apply(
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
    )
    .await
    .unwrap();
    for name in [OPERATOR, "prometheus", "guest"] {
        account(hub, name).await;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Gate::new(as_account(hub, OPERATOR).await);
    let serving = tokio::spawn(serve(
        listener,
        acceptor().unwrap(),
        gate,
        Metrics::default(),
    ));
    let [prometheus, guest] = [
        hub.request_token(NAMESPACE, "prometheus", 3600)
            .await
            .unwrap(),
        hub.request_token(NAMESPACE, "guest", 3600).await.unwrap(),
    ];
    assert_eq!(code(&fetch(address, None).await), 401);
    assert_eq!(
        code(&fetch(address, Some(&prometheus)).await),
        503,
        "without the role nobody is let in"
    );

    let role = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/rbac/secure-metrics.yaml");
    hub.apply_yaml(&std::fs::read_to_string(role).unwrap())
        .await
        .unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "prometheus" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "meshwright-metrics-reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": NAMESPACE }],
    });
    hub.apply(&binding).await.unwrap();
    eventually(Duration::from_secs(40), || async {
        let answer = fetch(address, Some(&prometheus)).await;
        if code(&answer) == 200 {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await
    .unwrap();
    assert!(
        fetch(address, Some(&prometheus))
            .await
            .contains("meshwright_leader")
    );
    assert_eq!(code(&fetch(address, Some(&guest)).await), 403);
    assert_eq!(code(&fetch(address, Some("guess")).await), 401);
    assert_eq!(code(&fetch(address, None).await), 401);
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: meshwright\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "nothing is told without TLS");
    serving.abort();
}
