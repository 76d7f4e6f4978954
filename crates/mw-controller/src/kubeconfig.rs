//! Validation of a member's kubeconfig before a client is made from it.
//!
//! A kubeconfig is code as much as data: it can name programs to run, files to
//! read and hosts to connect to. Write access to the Secret must grant none of
//! that in the operator's pod, so everything but a server, its CA and a token
//! or certificate is refused.

use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use http::Uri;
use kube::config::{AuthInfo, Cluster, Config, KubeConfigOptions, Kubeconfig};
use mw_core::cilium::facts::CaId;
use mw_core::text::printable;
use mw_core::time::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::address::{AddressPolicy, Forbidden};
use crate::private_ca::private_ca;

/// Settings that a member's kubeconfig may use (`--kubeconfig-allow`), and
/// addresses that it may name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    pub insecure_skip_tls_verify: bool,
    pub proxy_url: bool,
    pub impersonation: bool,
    pub addresses: AddressPolicy,
}

/// Reason why a kubeconfig is refused. Never contains its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("not UTF-8 text")]
    NotText,
    #[error("parse error{}", .line.map(|line| format!(" on line {line}")).unwrap_or_default())]
    NotAKubeconfig { line: Option<u64> },
    #[error("current-context does not name a cluster and a user")]
    NoContext,
    #[error("no server is set")]
    NoServer,
    #[error("server is not an https:// URL")]
    NotHttps,
    #[error("{0} must not contain a user name")]
    UserInUrl(&'static str),
    #[error("{0} is not a URL with a host")]
    NoHost(&'static str),
    #[error("{0} is not allowed: {1}")]
    ForbiddenHost(&'static str, Forbidden),
    #[error("exec credential plugins are not supported; use a token or a client certificate")]
    Exec,
    #[error("auth-provider plugins are not supported; use a token or a client certificate")]
    AuthProvider,
    #[error("{0} refers to a file; embed its content in the kubeconfig")]
    FileReference(&'static str),
    #[error(
        "basic auth (username and password) is not supported; use a token or a client certificate"
    )]
    BasicAuth,
    #[error("{0} is not allowed; to allow it, start meshwright with --kubeconfig-allow {0}")]
    NotAllowed(&'static str),
    #[error("no token and no client certificate with key")]
    NoCredentials,
    #[error("cannot create a client: {0}")]
    Unusable(String),
}

/// A validated kubeconfig.
pub struct Access(Kubeconfig);

/// Redacts the credentials.
impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access(redacted)")
    }
}

/// Parses and validates a kubeconfig.
pub fn inspect(bytes: &[u8], allowed: &Allowed) -> Result<Access, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::NotText)?;
    let kubeconfig: Kubeconfig =
        serde_saphyr::from_str(text).map_err(|wrong| Refusal::NotAKubeconfig {
            line: wrong.location().map(|at| at.line()),
        })?;
    let (cluster, user) = current(&kubeconfig).ok_or(Refusal::NoContext)?;
    check_server(cluster, allowed)?;
    check_user(user, allowed)?;
    Ok(Access(kubeconfig))
}

fn current(kubeconfig: &Kubeconfig) -> Option<(&Cluster, &AuthInfo)> {
    let name = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|context| context.name == name)?
        .context
        .as_ref()?;
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|cluster| cluster.name == context.cluster)?
        .cluster
        .as_ref()?;
    let user = context.user.as_ref()?;
    let user = kubeconfig
        .auth_infos
        .iter()
        .find(|info| info.name == *user)?
        .auth_info
        .as_ref()?;
    Some((cluster, user))
}

fn check_server(cluster: &Cluster, allowed: &Allowed) -> Result<(), Refusal> {
    let server = cluster
        .server
        .as_deref()
        .filter(|server| !server.is_empty())
        .ok_or(Refusal::NoServer)?;
    if !server.starts_with("https://") {
        return Err(Refusal::NotHttps);
    }
    let server = url(server, "server")?;
    if server
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(Refusal::UserInUrl("server"));
    }
    check_host(&server, "server", &allowed.addresses)?;
    if cluster.certificate_authority.is_some() {
        return Err(Refusal::FileReference("certificate-authority"));
    }
    if cluster.insecure_skip_tls_verify == Some(true) && !allowed.insecure_skip_tls_verify {
        return Err(Refusal::NotAllowed("insecure-skip-tls-verify"));
    }
    match cluster.proxy_url.as_deref() {
        None => Ok(()),
        Some(_) if !allowed.proxy_url => Err(Refusal::NotAllowed("proxy-url")),
        // The connection goes to the proxy, which resolves the server's name.
        // A server given as an address was checked above.
        Some(proxy) => check_host(&url(proxy, "proxy-url")?, "proxy-url", &allowed.addresses),
    }
}

/// Parses a URL as the client does, so that both mean the same host.
fn url(text: &str, what: &'static str) -> Result<Uri, Refusal> {
    text.parse().map_err(|_| Refusal::NoHost(what))
}

fn check_host(url: &Uri, what: &'static str, addresses: &AddressPolicy) -> Result<(), Refusal> {
    let host = url
        .host()
        .filter(|host| !host.is_empty())
        .ok_or(Refusal::NoHost(what))?;
    addresses
        .literal(host)
        .map(drop)
        .map_err(|forbidden| Refusal::ForbiddenHost(what, forbidden))
}

fn check_user(user: &AuthInfo, allowed: &Allowed) -> Result<(), Refusal> {
    if user.exec.is_some() {
        return Err(Refusal::Exec);
    }
    if user.auth_provider.is_some() {
        return Err(Refusal::AuthProvider);
    }
    let files = [
        ("tokenFile", &user.token_file),
        ("client-certificate", &user.client_certificate),
        ("client-key", &user.client_key),
    ];
    if let Some((name, _)) = files.iter().find(|(_, file)| file.is_some()) {
        return Err(Refusal::FileReference(name));
    }
    if user.username.is_some() || user.password.is_some() {
        return Err(Refusal::BasicAuth);
    }
    let impersonates = user.impersonate.is_some()
        || user.impersonate_uid.is_some()
        || user.impersonate_groups.is_some()
        || user.impersonate_user_extra.is_some();
    if impersonates && !allowed.impersonation {
        return Err(Refusal::NotAllowed("impersonation"));
    }
    let certificate = user.client_certificate_data.is_some() && user.client_key_data.is_some();
    match user.token.is_some() || certificate {
        true => Ok(()),
        false => Err(Refusal::NoCredentials),
    }
}

/// Returns the configuration of a client. The pod's own proxy is not used.
pub async fn config(access: &Access, allowed: &Allowed) -> Result<Config, Refusal> {
    let mut config =
        Config::from_custom_kubeconfig(access.0.clone(), &KubeConfigOptions::default())
            .await
            .map_err(|wrong| unusable(&wrong.to_string()))?;
    let named = current(&access.0).and_then(|(cluster, _)| cluster.proxy_url.as_deref());
    if !allowed.proxy_url || named.is_none() {
        config.proxy_url = None;
    }
    Ok(config)
}

pub fn unusable(wrong: &str) -> Refusal {
    Refusal::Unusable(printable(wrong, 200))
}

/// Identifies an API server before anything was read from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    url: String,
    authority: Option<String>,
}

impl Access {
    pub fn server(&self) -> Option<Server> {
        let (cluster, _) = current(&self.0)?;
        let url = cluster.server.as_deref()?.trim_end_matches('/').to_owned();
        Some(Server {
            url,
            authority: cluster.certificate_authority_data.clone(),
        })
    }

    /// Returns the private CA if it is the only CA that the server is verified against.
    pub fn private_ca(&self) -> Option<CaId> {
        let (cluster, _) = current(&self.0)?;
        let verified = cluster.insecure_skip_tls_verify != Some(true);
        let pem = Base64::decode_vec(cluster.certificate_authority_data.as_deref()?).ok()?;
        private_ca(&pem).filter(|_| verified)
    }

    /// Returns when the token or the client certificate expires, whichever is
    /// first; many tokens never do.
    pub fn ends(&self) -> Option<Timestamp> {
        let (_, user) = current(&self.0)?;
        let user = serde_json::to_value(user).ok()?;
        let text = |key: &str| user.get(key).and_then(serde_json::Value::as_str);
        let certificate = text("client-certificate-data").and_then(end_of_certificate);
        [text("token").and_then(end_of_token), certificate]
            .into_iter()
            .flatten()
            .min()
    }
}

#[derive(serde::Deserialize)]
struct Claims {
    exp: i64,
}

/// Returns the expiry of a JWT that has one.
fn end_of_token(token: &str) -> Option<Timestamp> {
    let claims = Base64UrlUnpadded::decode_vec(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims)
        .ok()
        .map(|Claims { exp }| Timestamp(exp))
}

fn end_of_certificate(data: &str) -> Option<Timestamp> {
    let pem = Base64::decode_vec(data).ok()?;
    let der = CertificateDer::from_pem_slice(&pem).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    Some(Timestamp(certificate.validity().not_after.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_core::cidr::Cidr;
    use proptest::prelude::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n\
             contexts:\n- name: x\n  context: {{cluster: c, user: u}}\ncurrent-context: x\n"
        )
    }

    const SERVER: &str = "server: 'https://203.0.113.1:6443'";
    const TOKEN: &str = "token: secret-token";

    fn verdict(cluster: &str, user: &str) -> Result<(), Refusal> {
        inspect(kubeconfig(cluster, user).as_bytes(), &Allowed::default()).map(drop)
    }

    /// Runs itself once more: the environment of a running process can't be changed safely.
    #[tokio::test]
    async fn the_proxy_of_the_environment_is_not_used_for_members() {
        const PROXY: &str = "http://203.0.113.9:3128/";
        if std::env::var("HTTPS_PROXY").as_deref() != Ok(PROXY) {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args([
                "--exact",
                "kubeconfig::tests::the_proxy_of_the_environment_is_not_used_for_members",
            ]);
            let ran = again
                .env("HTTPS_PROXY", PROXY)
                .env_remove("NO_PROXY")
                .env_remove("no_proxy")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            return assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        }
        let access = inspect(kubeconfig(SERVER, TOKEN).as_bytes(), &Allowed::default()).unwrap();
        let kubes = Config::from_custom_kubeconfig(access.0.clone(), &KubeConfigOptions::default())
            .await
            .unwrap();
        assert_eq!(
            kubes.proxy_url.map(|proxy| proxy.to_string()).as_deref(),
            Some(PROXY),
            "kube would use it"
        );
        for allowed in [
            Allowed::default(),
            Allowed {
                proxy_url: true,
                ..Allowed::default()
            },
        ] {
            assert_eq!(config(&access, &allowed).await.unwrap().proxy_url, None);
        }
    }

    #[test]
    fn a_server_and_a_token_are_enough() {
        assert_eq!(verdict(SERVER, TOKEN), Ok(()));
        assert_eq!(
            verdict(
                SERVER,
                "client-certificate-data: eA==, client-key-data: eQ=="
            ),
            Ok(())
        );
        assert_eq!(verdict("server: 'https://api.example.org'", TOKEN), Ok(()));
        assert_eq!(
            verdict("server: 'https://[2001:db8::1]:6443/k8s'", TOKEN),
            Ok(())
        );
    }

    #[test]
    fn a_program_is_never_run_for_credentials() {
        assert_eq!(
            verdict(
                SERVER,
                "exec: {command: /bin/sh, apiVersion: client.authentication.k8s.io/v1}"
            ),
            Err(Refusal::Exec)
        );
        assert_eq!(
            verdict(SERVER, "token: t, exec: {command: sh}"),
            Err(Refusal::Exec)
        );
        assert_eq!(
            verdict(SERVER, "auth-provider: {name: gcp, config: {}}"),
            Err(Refusal::AuthProvider)
        );
    }

    #[test]
    fn no_file_of_the_pod_is_read() {
        assert_eq!(
            verdict("server: 'https://a', certificate-authority: /etc/ca", TOKEN),
            Err(Refusal::FileReference("certificate-authority"))
        );
        assert_eq!(
            verdict(SERVER, "tokenFile: /var/run/token"),
            Err(Refusal::FileReference("tokenFile"))
        );
        assert_eq!(
            verdict(SERVER, "client-certificate: /a, client-key-data: eA=="),
            Err(Refusal::FileReference("client-certificate"))
        );
        assert_eq!(
            verdict(SERVER, "client-key: /a, client-certificate-data: eA=="),
            Err(Refusal::FileReference("client-key"))
        );
    }

    #[test]
    fn only_https_to_an_ordinary_host_is_dialled() {
        assert_eq!(
            verdict("server: 'http://203.0.113.1'", TOKEN),
            Err(Refusal::NotHttps)
        );
        assert_eq!(
            verdict("insecure-skip-tls-verify: false", TOKEN),
            Err(Refusal::NoServer)
        );
        assert_eq!(
            verdict("server: 'https://u@203.0.113.1'", TOKEN),
            Err(Refusal::UserInUrl("server"))
        );
        for host in ["", ":6443", "a b", "a\\@b"] {
            assert_eq!(
                verdict(&format!("server: 'https://{host}'"), TOKEN),
                Err(Refusal::NoHost("server")),
                "{host}"
            );
        }
        for host in [
            "169.254.169.254",
            "0.0.0.0",
            "[::]",
            "[fe80::1]",
            "[::ffff:169.254.169.254]:443",
            "[64:ff9b::a9fe:a9fe]",
            "224.0.0.1",
            "2852039166",
            "0xa9fea9fe",
            "169.254.43518",
            "169.254.0xa9fe",
            "0177.0.0.1",
            "169.254.169.254.",
        ] {
            let found = verdict(&format!("server: 'https://{host}'"), TOKEN);
            assert!(
                matches!(found, Err(Refusal::ForbiddenHost("server", _))),
                "{host}: {found:?}"
            );
        }
    }

    #[test]
    fn loopback_is_refused_inside_a_cluster_and_allowed_by_its_network() {
        let addresses = |allowed: &[&str]| {
            let allowed = allowed
                .iter()
                .map(|text| Cidr::try_from(*text).unwrap())
                .collect();
            AddressPolicy {
                allowed,
                refuses_loopback: true,
            }
        };
        let inside = |addresses| Allowed {
            addresses,
            ..Allowed::default()
        };
        for host in ["127.0.0.1:6443", "[::1]", "[::ffff:127.0.0.1]"] {
            let text = kubeconfig(&format!("server: 'https://{host}'"), TOKEN);
            let refused = inspect(text.as_bytes(), &inside(addresses(&[])))
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains("a loopback address") && refused.contains("--allow-address"),
                "{refused}"
            );
            assert!(
                inspect(
                    text.as_bytes(),
                    &inside(addresses(&["127.0.0.0/8", "::1/128"]))
                )
                .is_ok(),
                "{host}"
            );
            assert!(
                inspect(text.as_bytes(), &Allowed::default()).is_ok(),
                "{host}"
            );
        }
    }

    #[test]
    fn a_proxy_is_judged_like_a_server() {
        let allowed = Allowed {
            proxy_url: true,
            ..Allowed::default()
        };
        let verdict = |proxy: &str, server: &str| {
            let text = kubeconfig(
                &format!("server: 'https://{server}', proxy-url: '{proxy}'"),
                TOKEN,
            );
            inspect(text.as_bytes(), &allowed).map(drop)
        };
        assert_eq!(
            verdict("http://user:pw@10.0.0.1:3128", "api.example"),
            Ok(())
        );
        assert!(matches!(
            verdict("http://169.254.169.254", "api.example"),
            Err(Refusal::ForbiddenHost("proxy-url", _))
        ));
        assert!(matches!(
            verdict("http://10.0.0.1:3128", "169.254.169.254"),
            Err(Refusal::ForbiddenHost("server", _))
        ));
    }

    #[test]
    fn what_weakens_the_connection_must_be_allowed_by_the_operator() {
        let cases = [
            (
                "server: 'https://a', insecure-skip-tls-verify: true",
                TOKEN,
                "insecure-skip-tls-verify",
            ),
            (
                "server: 'https://a', proxy-url: 'http://proxy:3128'",
                TOKEN,
                "proxy-url",
            ),
            (SERVER, "token: t, as: admin", "impersonation"),
        ];
        let all = Allowed {
            insecure_skip_tls_verify: true,
            proxy_url: true,
            impersonation: true,
            ..Allowed::default()
        };
        for (cluster, user, name) in cases {
            assert_eq!(verdict(cluster, user), Err(Refusal::NotAllowed(name)));
            assert!(
                inspect(kubeconfig(cluster, user).as_bytes(), &all).is_ok(),
                "{name}"
            );
        }
    }

    #[test]
    fn passwords_and_missing_credentials_are_refused() {
        assert_eq!(
            verdict(SERVER, "username: a, password: b"),
            Err(Refusal::BasicAuth)
        );
        assert_eq!(verdict(SERVER, ""), Err(Refusal::NoCredentials));
        assert_eq!(
            verdict(SERVER, "client-certificate-data: eA=="),
            Err(Refusal::NoCredentials)
        );
    }

    #[test]
    fn a_broken_kubeconfig_is_named_by_its_line_and_never_by_its_text() {
        let text = format!("{}  token: [hunter2\n", kubeconfig(SERVER, TOKEN));
        let refusal = inspect(text.as_bytes(), &Allowed::default()).unwrap_err();
        assert!(
            matches!(refusal, Refusal::NotAKubeconfig { line: Some(_) }),
            "{refusal:?}"
        );
        assert!(
            !refusal.to_string().contains("hunter2") && !format!("{refusal:?}").contains("hunter2")
        );
        assert_eq!(
            inspect(&[0xff], &Allowed::default()).map(drop),
            Err(Refusal::NotText)
        );
        let without = kubeconfig(SERVER, TOKEN).replace("current-context: x", "current-context: y");
        assert_eq!(
            inspect(without.as_bytes(), &Allowed::default()).map(drop),
            Err(Refusal::NoContext)
        );
    }

    #[test]
    fn credentials_do_not_show() {
        let access = inspect(kubeconfig(SERVER, TOKEN).as_bytes(), &Allowed::default()).unwrap();
        assert!(!format!("{access:?}").contains("secret-token"));
    }

    #[tokio::test]
    async fn a_configuration_is_made_from_what_passed() {
        let access = inspect(kubeconfig(SERVER, TOKEN).as_bytes(), &Allowed::default()).unwrap();
        assert!(config(&access, &Allowed::default()).await.is_ok());
        let broken = kubeconfig(
            "server: 'https://a', certificate-authority-data: '!!'",
            TOKEN,
        );
        let access = inspect(broken.as_bytes(), &Allowed::default()).unwrap();
        assert!(matches!(
            config(&access, &Allowed::default()).await,
            Err(Refusal::Unusable(_))
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            _ = inspect(&bytes, &Allowed::default());
        }
    }
}
