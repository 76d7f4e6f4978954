//! Dials a real etcd that runs as in Cilium, and servers that misbehave.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail loudly"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff;
use mw_controller::address::AddressPolicy;
use mw_controller::cilium::dial::{Answer, Dialler, Failed, Network, outcome};
use mw_controller::clock::Clock;
use mw_core::cidr::Cidr;
use mw_core::cilium::facts::ClientFiles;
use mw_core::cilium::plan::Dial;
use mw_core::cilium::secret::SecretBytes;
use mw_core::cilium::world::{DialFailure, DialOutcome, Heartbeat};
use mw_core::names::CiliumName;
use mw_core::time::Timestamp;
use mw_testbed::etcd::MeshEtcd;
use mw_testbed::{Authority, Identity, or_skip};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

const CONFIG: &str = "cilium/cluster-config/b";
const HEARTBEAT: &str = "cilium/.heartbeat";
const MESH_NAME: &str = "*.mesh.cilium.io";
/// Timeout for dials that succeed.
const LONG: Duration = Duration::from_secs(30);
/// Timeout for dials that never get an answer.
const SHORT: Duration = Duration::from_millis(500);

struct Remote {
    authority: Authority,
    etcd: MeshEtcd,
}

impl Remote {
    /// Starts cluster b with a certificate for these names. Returns None on a machine
    /// without etcd.
    async fn start(names: &[&str]) -> Option<Remote> {
        let authority = Authority::new("b").unwrap();
        let serving = authority
            .issue(
                "clustermesh-apiserver.kube-system.svc",
                &[names, &[MESH_NAME]].concat(),
            )
            .unwrap();
        let etcd = or_skip(MeshEtcd::start(&authority, &serving).await)?;
        etcd.put(
            CONFIG,
            r#"{"id":2,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#,
        )
        .await
        .unwrap();
        etcd.admit("b", &["remote"]).await.unwrap();
        Some(Remote { authority, etcd })
    }

    fn dial(&self, host: &str) -> Dial {
        dial(
            host,
            self.etcd.port(),
            &self.authority,
            &self.authority.issue("remote", &[]).unwrap(),
        )
    }
}

fn dial(host: &str, port: u16, trusted: &Authority, client: &Identity) -> Dial {
    let bytes = |text: &str| SecretBytes::new(text.as_bytes());
    Dial {
        fingerprint: "f".to_owned(),
        hosts: vec![host.to_owned()],
        port,
        server_name: None,
        files: ClientFiles {
            ca: bytes(trusted.pem()),
            certificate: bytes(&client.certificate),
            key: bytes(&client.key),
        },
        cluster_name: CiliumName::try_from("b").unwrap(),
        cluster_id: 2,
    }
}

/// A dial with files of an unknown CA.
fn stranger(host: &str, port: u16) -> Dial {
    let authority = Authority::new("b").unwrap();
    dial(
        host,
        port,
        &authority,
        &authority.issue("remote", &[]).unwrap(),
    )
}

async fn tried_for(timeouts: Duration, dial: Dial) -> Result<Answer, Failed> {
    let start = Instant::now();
    let result = Network {
        clock: Clock::system(),
        timeouts,
        addresses: AddressPolicy::default(),
    }
    .dial(dial)
    .await;
    assert!(
        start.elapsed() < timeouts + Duration::from_secs(5),
        "the deadline was not kept: {:?}",
        start.elapsed()
    );
    if let Err(Failed { text, .. }) = &result {
        assert!(!text.contains("PRIVATE") && text.contains("; "), "{text}");
    }
    result
}

async fn tried(dial: Dial) -> Result<Answer, Failed> {
    tried_for(LONG, dial).await
}

#[track_caller]
fn assert_failed(result: Result<Answer, Failed>, kind: DialFailure, says: &[&str]) {
    let failed = result.expect_err("it was read");
    assert_eq!(failed.kind, kind, "{failed}");
    for part in says {
        assert!(
            failed.text.contains(part),
            "{part:?} is not in {:?}",
            failed.text
        );
    }
}

const READ: Answer = Answer {
    id: 2,
    heartbeat: None,
};

#[tokio::test]
async fn an_address_in_the_certificate_is_read() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    assert_eq!(tried(remote.dial("127.0.0.1")).await, Ok(READ));
}

#[tokio::test]
async fn a_host_name_is_resolved_and_checked() {
    let Some(remote) = Remote::start(&["localhost"]).await else {
        return;
    };
    assert_eq!(tried(remote.dial("localhost")).await, Ok(READ));
    assert_failed(
        tried(remote.dial("127.0.0.1")).await,
        DialFailure::Certificate,
        &["not valid for 127.0.0.1, only for localhost, *.mesh"],
    );
}

#[tokio::test]
async fn the_server_name_is_what_the_certificate_must_be_valid_for() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let named = |name: &str| Dial {
        server_name: Some(name.to_owned()),
        ..remote.dial("127.0.0.1")
    };
    assert_eq!(tried(named("b.mesh.cilium.io")).await, Ok(READ));
    let says = [
        "127.0.0.1:",
        "not valid for b.example, only for 127.0.0.1, *.mesh.cilium.io",
        "extraDnsNames",
    ];
    assert_failed(
        tried(named("b.example")).await,
        DialFailure::Certificate,
        &says,
    );
    assert_failed(
        tried(named("no name")).await,
        DialFailure::Dns,
        &["no name"],
    );
}

#[tokio::test]
async fn one_address_of_several_is_enough() {
    let Some(remote) = Remote::start(&["127.0.0.1", "127.0.0.2"]).await else {
        return;
    };
    let mut dial = remote.dial("127.0.0.2");
    assert_failed(
        tried(dial.clone()).await,
        DialFailure::Tcp,
        &["127.0.0.2:", "refuses connections"],
    );
    dial.hosts.push("127.0.0.1".to_owned());
    assert_eq!(tried(dial.clone()).await, Ok(READ));
    dial.hosts = vec!["127.0.0.3".to_owned(), "127.0.0.2".to_owned()];
    assert_failed(
        tried(dial).await,
        DialFailure::Tcp,
        &["127.0.0.3:", "; 127.0.0.2:"],
    );
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_a_failure_of_dns() {
    assert_failed(
        tried(stranger("nobody.invalid", 1)).await,
        DialFailure::Dns,
        &["cannot resolve nobody.invalid"],
    );
    let nowhere = Dial {
        hosts: Vec::new(),
        ..stranger("x", 1)
    };
    assert_failed(tried(nowhere).await, DialFailure::Tcp, &["no address"]);
}

#[tokio::test]
async fn a_port_without_a_server_refuses() {
    let port = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    assert_failed(
        tried(stranger("127.0.0.1", port)).await,
        DialFailure::Tcp,
        &["refuses connections", "clustermesh-apiserver"],
    );
}

/// An address that drops all packets: its accept queue is full.
async fn black_hole() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    (address, queued, listener)
}

#[tokio::test]
async fn an_address_that_swallows_everything_is_given_up_in_time() {
    let (address, _queued, _listener) = black_hole().await;
    let result = tried_for(SHORT, stranger("127.0.0.1", address.port())).await;
    assert_failed(
        result,
        DialFailure::Tcp,
        &["no answer from 127.0.0.1:", "within 0.5s", "firewalls"],
    );
}

#[tokio::test]
async fn a_server_of_another_ca_is_not_trusted() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let client = remote.authority.issue("remote", &[]).unwrap();
    for other in [Authority::new("b").unwrap(), Authority::new("c").unwrap()] {
        let result = tried(dial("127.0.0.1", remote.etcd.port(), &other, &client)).await;
        assert_failed(
            result,
            DialFailure::Certificate,
            &["a CA that is not in the client's ca.crt"],
        );
    }
}

#[tokio::test]
async fn a_client_that_the_server_does_not_trust_is_told_so() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let foreign = |name: &str| Authority::new(name).unwrap().issue("remote", &[]).unwrap();
    for client in [
        foreign("b"),
        foreign("c"),
        remote.authority.issue_expired("remote", &[]).unwrap(),
    ] {
        let result = tried(dial(
            "127.0.0.1",
            remote.etcd.port(),
            &remote.authority,
            &client,
        ))
        .await;
        assert_failed(
            result,
            DialFailure::Certificate,
            &["receives the client certificate and", "trusts its CA"],
        );
    }
}

#[tokio::test]
async fn files_that_do_not_fit_are_not_dialled_with() {
    let authority = Authority::new("b").unwrap();
    let [one, two] = [(); 2].map(|()| authority.issue("remote", &[]).unwrap());
    let mixed = Identity {
        certificate: one.certificate.clone(),
        key: two.key,
    };
    let result = tried(dial("127.0.0.1", 1, &authority, &mixed)).await;
    assert_failed(
        result,
        DialFailure::Certificate,
        &["the certificate and the key do not match"],
    );
    let swapped = Identity {
        certificate: one.key.clone(),
        key: one.certificate,
    };
    assert_failed(
        tried(dial("127.0.0.1", 1, &authority, &swapped)).await,
        DialFailure::Certificate,
        &["no private key"],
    );
}

#[tokio::test]
async fn an_expired_server_certificate_is_named_with_its_end() {
    let authority = Authority::new("b").unwrap();
    let serving = authority.issue_expired("server", &["127.0.0.1"]).unwrap();
    let Some(etcd) = or_skip(MeshEtcd::start(&authority, &serving).await) else {
        return;
    };
    let result = tried(dial(
        "127.0.0.1",
        etcd.port(),
        &authority,
        &authority.issue("remote", &[]).unwrap(),
    ))
    .await;
    assert_failed(
        result,
        DialFailure::Certificate,
        &["expired at 2001-01-01T00:00:00Z", "reissue it"],
    );
}

#[tokio::test]
async fn certificates_are_judged_by_the_clock_that_is_given() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let clock = Clock::new(|| jiff::Timestamp::UNIX_EPOCH);
    let result = Network {
        clock,
        timeouts: LONG,
        addresses: AddressPolicy::default(),
    }
    .dial(remote.dial("127.0.0.1"))
    .await;
    assert_failed(
        result,
        DialFailure::Certificate,
        &["not valid before 1975-01-01T00:00:00Z", "clocks"],
    );
}

#[tokio::test]
async fn a_user_that_is_not_known_or_may_not_read_is_refused() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let nobody = remote.authority.issue("remote-c", &[]).unwrap();
    let result = tried(dial(
        "127.0.0.1",
        remote.etcd.port(),
        &remote.authority,
        &nobody,
    ))
    .await;
    let says = [
        "denies the client access to cilium/cluster-config/b: etcdserver: permission denied",
        "clustermesh-remote-users",
    ];
    assert_failed(result, DialFailure::Permission, &says);
    let nameless = remote.authority.issue("", &[]).unwrap();
    let result = tried(dial(
        "127.0.0.1",
        remote.etcd.port(),
        &remote.authority,
        &nameless,
    ))
    .await;
    assert_failed(
        result,
        DialFailure::Permission,
        &["clustermesh-remote-users"],
    );
    let other = Dial {
        cluster_name: CiliumName::try_from("c").unwrap(),
        ..remote.dial("127.0.0.1")
    };
    assert_failed(
        tried(other).await,
        DialFailure::Permission,
        &["check that the cluster there is named c"],
    );
}

#[tokio::test]
async fn a_cluster_config_must_be_there_and_make_sense() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    remote.etcd.delete(CONFIG).await.unwrap();
    assert_failed(
        tried(remote.dial("127.0.0.1")).await,
        DialFailure::Name,
        &[
            "has no key cilium/cluster-config/b",
            "has finished starting",
        ],
    );
    for wrong in ["", "b", "{}", r#"{"id":"2"}"#, r#"{"id":-1}"#, "[2"] {
        remote.etcd.put(CONFIG, wrong).await.unwrap();
        assert_failed(
            tried(remote.dial("127.0.0.1")).await,
            DialFailure::Name,
            &["cannot parse cilium/cluster-config/b"],
        );
    }
    remote
        .etcd
        .put(
            CONFIG,
            &format!(r#"{{"id":2,"x":"{}"}}"#, "x".repeat(300 << 10)),
        )
        .await
        .unwrap();
    assert_failed(
        tried(remote.dial("127.0.0.1")).await,
        DialFailure::Name,
        &["larger than 262144 bytes"],
    );
    remote.etcd.put(CONFIG, r#"{"id":77}"#).await.unwrap();
    assert_eq!(
        tried(remote.dial("127.0.0.1")).await,
        Ok(Answer {
            id: 77,
            heartbeat: None
        }),
        "as it was found"
    );
}

#[tokio::test]
async fn a_heartbeat_is_read_and_seen_to_move() {
    let Some(remote) = Remote::start(&["127.0.0.1"]).await else {
        return;
    };
    let mut known = None;
    let mut last = None;
    for (now, text, expected) in [
        (
            1000,
            None,
            Heartbeat::Absent {
                since: Timestamp(1000),
            },
        ),
        (
            1010,
            None,
            Heartbeat::Absent {
                since: Timestamp(1000),
            },
        ),
        (
            1020,
            Some("1970-01-01T00:01:00Z"),
            Heartbeat::At {
                time: Timestamp(60),
                moved: Some(Timestamp(1020)),
            },
        ),
        (
            1030,
            Some("1970-01-01T00:01:00Z"),
            Heartbeat::At {
                time: Timestamp(60),
                moved: Some(Timestamp(1020)),
            },
        ),
        (
            1090,
            Some("1970-01-01T00:02:00Z"),
            Heartbeat::At {
                time: Timestamp(120),
                moved: Some(Timestamp(1090)),
            },
        ),
        (
            1100,
            Some("yesterday"),
            Heartbeat::Absent {
                since: Timestamp(1100),
            },
        ),
    ] {
        if let Some(text) = text.filter(|text| last != Some(*text)) {
            remote.etcd.put(HEARTBEAT, text).await.unwrap();
            last = Some(text);
        }
        let outcome = outcome(
            known.as_ref(),
            tried(remote.dial("127.0.0.1")).await,
            Timestamp(now),
        );
        assert_eq!(
            outcome,
            DialOutcome::Read {
                id: 2,
                heartbeat: expected
            },
            "at {now}"
        );
        known = Some(outcome);
    }
}

/// A server that handles every connection with `treat`.
async fn server<F>(treat: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(treat(stream));
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_told_from_a_silent_one() {
    let port = server(|mut stream| async move {
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    assert_failed(
        tried(stranger("127.0.0.1", port)).await,
        DialFailure::Tls,
        &["does not speak TLS"],
    );
    let port = server(|stream| async move { drop(stream) }).await;
    assert_failed(
        tried(stranger("127.0.0.1", port)).await,
        DialFailure::Tls,
        &["aborts the TLS handshake"],
    );
    let port = server(|stream| async move {
        let _kept = stream;
        std::future::pending().await
    })
    .await;
    let result = tried_for(SHORT, stranger("127.0.0.1", port)).await;
    assert_failed(
        result,
        DialFailure::Tls,
        &["accepts the connection but sends nothing within 0.5s"],
    );
}

/// A server that completes the handshake with any client and then sends `answer`.
async fn behind_tls(authority: &Authority, answer: Option<&'static [u8]>) -> u16 {
    let Identity { certificate, key } = authority.issue("server", &["127.0.0.1"]).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(
        config
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap(),
    ));
    server(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            match answer {
                None => {}
                Some(answer) => {
                    stream.write_all(answer).await.unwrap();
                    stream.flush().await.unwrap();
                }
            }
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_server_that_hangs_after_the_handshake_does_not_trust_the_client() {
    let authority = Authority::new("b").unwrap();
    let port = behind_tls(&authority, None).await;
    let result = tried_for(
        SHORT,
        dial(
            "127.0.0.1",
            port,
            &authority,
            &authority.issue("remote", &[]).unwrap(),
        ),
    )
    .await;
    assert_failed(
        result,
        DialFailure::Certificate,
        &["receives the client certificate and sends nothing within 0.5s"],
    );
}

#[tokio::test]
async fn a_server_that_is_no_etcd_is_told_so() {
    let authority = Authority::new("b").unwrap();
    // The second starts like HTTP/2, then requests a frame size that is too large.
    for answer in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"\0\0\0\x04\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\x01",
    ] {
        let port = behind_tls(&authority, Some(answer)).await;
        let result = tried(dial(
            "127.0.0.1",
            port,
            &authority,
            &authority.issue("remote", &[]).unwrap(),
        ))
        .await;
        assert_failed(result, DialFailure::Name, &["is not an etcd server"]);
    }
}

/// Inside a cluster, names and all spellings of a forbidden address fail without a
/// connection.
#[tokio::test]
async fn a_forbidden_address_is_never_dialled() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let inside = |allowed: &[&str]| Network {
        clock: Clock::system(),
        timeouts: LONG,
        addresses: AddressPolicy {
            allowed: allowed
                .iter()
                .map(|text| Cidr::try_from(*text).unwrap())
                .collect(),
            refuses_loopback: true,
        },
    };
    for host in [
        "127.0.0.1",
        "localhost",
        "0177.0.0.1",
        "127.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::127.0.0.1",
    ] {
        let failed = inside(&[]).dial(stranger(host, port)).await.unwrap_err();
        assert_eq!(failed.kind, DialFailure::Address, "{host}: {failed}");
    }
    for host in ["169.254.169.254", "169.254.0xa9fe", "fd00:ec2::254"] {
        let failed = Network {
            addresses: AddressPolicy::default(),
            ..inside(&[])
        }
        .dial(stranger(host, port))
        .await
        .unwrap_err();
        assert_eq!(failed.kind, DialFailure::Address, "{host}: {failed}");
    }
    // Not every resolver resolves it.
    let failed = inside(&[])
        .dial(stranger("localhost.", port))
        .await
        .unwrap_err();
    assert!(failed.kind <= DialFailure::Address, "{failed}");
    let mut several = stranger("127.0.0.2", port);
    several.hosts.push("169.254.169.254".to_owned());
    let failed = Network {
        addresses: AddressPolicy::default(),
        ..inside(&[])
    }
    .dial(several)
    .await
    .unwrap_err();
    assert_eq!(
        failed.kind,
        DialFailure::Address,
        "one bad address refuses the dial: {failed}"
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(200), listener.accept())
            .await
            .is_err(),
        "somebody was connected to"
    );
    let accepted = tokio::spawn(async move { listener.accept().await.map(drop) });
    let failed = inside(&["127.0.0.0/8"])
        .dial(stranger("127.0.0.1", port))
        .await
        .unwrap_err();
    assert!(failed.kind > DialFailure::Address, "{failed}");
    accepted.await.unwrap().unwrap();
}
