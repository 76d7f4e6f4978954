//! The files of one remote in Cilium's clustermesh directory: the etcd client
//! configuration under the remote's name, and separate client files if the
//! reader's are not accepted there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

use crate::cilium::endpoint::Endpoint;
use crate::cilium::facts::ClientFiles;
use crate::cilium::secret::SecretBytes;
use crate::endpoint::{Host, split_host_port};
use crate::names::CiliumName;

const FOLDER: &str = "/var/lib/cilium/clustermesh";
const OWN: &str = ".etcd-client";

const COMMON_STEM: &str = "common-etcd-client";
const LOCAL_STEM: &str = "local-etcd-client";
/// Longer text is not a configuration written for Cilium.
const LONGEST: usize = 64 * 1024;

/// The client files that a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// The reader's files for all remotes.
    Common,
    /// The reader's files for its own etcd.
    Local,
    /// Separate files for this remote.
    Own,
}

impl Client {
    fn stem(self, remote: &CiliumName) -> String {
        match self {
            Client::Common => COMMON_STEM.to_owned(),
            Client::Local => LOCAL_STEM.to_owned(),
            Client::Own => format!("{remote}{OWN}"),
        }
    }

    /// The certificate's file name; it exists if all three files do.
    pub(super) fn certificate(self, remote: &CiliumName) -> String {
        format!("{}.crt", self.stem(remote))
    }
}

/// The configuration of a remote's endpoint. Cilium reads the CA only when it
/// connects, and reconnects when this text changes, so it contains the hash of
/// the CA.
pub(super) fn remote(
    name: &CiliumName,
    endpoint: &Endpoint,
    client: Client,
    ca: &SecretBytes,
) -> SecretBytes {
    let mut text = config(&endpoint.urls, &client.stem(name), ca);
    if let (true, Some(host)) = (endpoint.aliased, &endpoint.name) {
        text.push_str(&format!(
            "cilium-host-aliases:\n- hostname: {host}\n  ips:\n"
        ));
        text.extend(endpoint.hosts.iter().map(|ip| format!("  - \"{ip}\"\n")));
    }
    SecretBytes::new(text.as_bytes())
}

/// The configuration, under a remote's name, of the reader's own etcd, which
/// KVStoreMesh fills.
pub(super) fn local(
    name: &CiliumName,
    namespace: &str,
    client: Client,
    ca: &SecretBytes,
) -> SecretBytes {
    let url = format!("https://clustermesh-apiserver.{namespace}.svc:2379");
    SecretBytes::new(config(&[url], &client.stem(name), ca).as_bytes())
}

fn config(urls: &[String], stem: &str, ca: &SecretBytes) -> String {
    let urls: String = urls.iter().map(|url| format!("- {url}\n")).collect();
    format!(
        "# CA {}\nendpoints:\n{urls}trusted-ca-file: {FOLDER}/{stem}-ca.crt\nkey-file: {FOLDER}/{stem}.key\ncert-file: {FOLDER}/{stem}.crt\n",
        ca.fingerprint()
    )
}

/// The separate client files of a remote, by key.
pub(super) fn own_files(name: &CiliumName, files: &ClientFiles) -> BTreeMap<String, SecretBytes> {
    let stem = Client::Own.stem(name);
    let ClientFiles {
        ca,
        certificate,
        key,
    } = files;
    [("-ca.crt", ca), (".crt", certificate), (".key", key)]
        .into_iter()
        .map(|(end, bytes)| (format!("{stem}{end}"), bytes.clone()))
        .collect()
}

/// A file that the clustermesh volume takes from a certificate's Secret:
/// whether it is for the reader's own etcd, and the suffix of its name.
pub(super) fn projected(file: &str) -> Option<(bool, &str)> {
    let stems = [(COMMON_STEM, false), (LOCAL_STEM, true)];
    let (end, is_local) = stems
        .into_iter()
        .find_map(|(stem, is_local)| Some((file.strip_prefix(stem)?, is_local)))?;
    ["-ca.crt", ".crt", ".key"]
        .contains(&end)
        .then_some((is_local, end))
}

/// A configuration as found in a Secret, ours or another manager's.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClientConfig {
    endpoints: Vec<String>,
    trusted_ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    #[serde(default)]
    cilium_host_aliases: Vec<HostAlias>,
}

#[derive(Deserialize, Debug)]
struct HostAlias {
    hostname: String,
    ips: Vec<String>,
}

impl ClientConfig {
    /// Returns `None` if Cilium can't parse it either.
    pub(super) fn read(config: &SecretBytes) -> Option<ClientConfig> {
        let text = std::str::from_utf8(config.expose())
            .ok()
            .filter(|text| text.len() <= LONGEST)?;
        serde_saphyr::from_str(text).ok()
    }

    /// The CA, the certificate and the key, each with the field that names it.
    pub(super) fn files(&self) -> [(&'static str, Option<&str>); 3] {
        let ClientConfig {
            trusted_ca_file,
            cert_file,
            key_file,
            ..
        } = self;
        [
            ("trusted-ca-file", trusted_ca_file),
            ("cert-file", cert_file),
            ("key-file", key_file),
        ]
        .map(|(field, path)| (field, path.as_deref()))
    }

    /// The name of a file in the clustermesh directory.
    pub(super) fn file_name(path: &str) -> Option<&str> {
        path.strip_prefix(FOLDER)?
            .strip_prefix('/')
            .filter(|name| !name.contains('/'))
    }

    /// The endpoint. `hosts` returns the addresses of a name that the reader
    /// resolves itself. Endpoints with a different port than the first, or with
    /// another aliased name, are left out.
    pub(super) fn endpoint(
        &self,
        hosts: impl Fn(&str) -> Option<Vec<String>>,
    ) -> Result<Endpoint, String> {
        let all: Vec<(String, u16)> = self
            .endpoints
            .iter()
            .map(|url| host_and_port(url))
            .collect::<Result<_, _>>()?;
        let (first, port) = all.first().ok_or("it has no endpoint")?;
        let alias = self
            .cilium_host_aliases
            .iter()
            .find(|alias| alias.hostname == *first);
        let (hosts, name) = match alias
            .map(|alias| alias.ips.clone())
            .or_else(|| hosts(first))
        {
            Some(hosts) => (hosts, Some(first.clone())),
            None => (
                all.iter()
                    .filter(|(_, of)| of == port)
                    .map(|(host, _)| host.clone())
                    .collect(),
                None,
            ),
        };
        Ok(Endpoint {
            urls: self.endpoints.clone(),
            hosts,
            port: *port,
            name,
            aliased: alias.is_some(),
        })
    }
}

/// Errors don't quote the content of a Secret, except addresses.
fn host_and_port(url: &str) -> Result<(String, u16), String> {
    let wrong = || "an endpoint is not https://host:port".to_owned();
    let rest = url.strip_prefix("https://").ok_or_else(wrong)?;
    match split_host_port(rest.strip_suffix('/').unwrap_or(rest)).map_err(|_| wrong())? {
        (Host::Ip(ip), port) => Ok((ip.to_string(), port)),
        (Host::Dns(name), port) => Ok((name.into(), port)),
    }
}

/// The remote that a key belongs to.
pub(super) fn remote_of(key: &str) -> &str {
    let ends = ["-ca.crt", ".crt", ".key"].map(|end| format!("{OWN}{end}"));
    ends.iter()
        .find_map(|end| key.strip_suffix(end.as_str()))
        .unwrap_or(key)
}

/// Reports whether a configuration contains an address.
pub(super) fn mentions(config: &SecretBytes, address: &str) -> bool {
    has_host(config, |host| host == address)
}

/// Reports whether a configuration contains any address, not only names.
pub(super) fn has_address(config: &SecretBytes) -> bool {
    has_host(config, |host| host.parse::<IpAddr>().is_ok())
}

fn has_host(config: &SecretBytes, is: impl Fn(&str) -> bool) -> bool {
    let text = String::from_utf8_lossy(config.expose());
    let apart = |c: char| !(c.is_ascii_hexdigit() || c == '.' || c == ':');
    text.lines().any(|line| {
        let line = line
            .trim()
            .trim_start_matches("- ")
            .trim_start_matches("https://");
        let host = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .map_or_else(
                || {
                    line.split(apart)
                        .find(|part| !part.is_empty())
                        .unwrap_or_default()
                },
                |(host, _)| host,
            );
        is(host) || host.rsplit_once(':').is_some_and(|(host, _)| is(host))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> CiliumName {
        CiliumName::try_from("b").unwrap()
    }

    fn endpoint(aliased: bool) -> Endpoint {
        let name = aliased.then(|| "b.mesh.cilium.io".to_owned());
        let host = name.clone().unwrap_or("192.0.2.10".to_owned());
        Endpoint {
            urls: vec![format!("https://{host}:2379")],
            hosts: vec!["192.0.2.10".to_owned()],
            port: 2379,
            name,
            aliased,
        }
    }

    #[test]
    fn a_remotes_file_is_laid_out_as_cilium_reads_it() {
        let ca = SecretBytes::new(b"CA");
        let text = remote(&name(), &endpoint(true), Client::Common, &ca);
        let expected = format!(
            "# CA {}\nendpoints:\n- https://b.mesh.cilium.io:2379\ntrusted-ca-file: /var/lib/cilium/clustermesh/common-etcd-client-ca.crt\n\
             key-file: /var/lib/cilium/clustermesh/common-etcd-client.key\ncert-file: /var/lib/cilium/clustermesh/common-etcd-client.crt\n\
             cilium-host-aliases:\n- hostname: b.mesh.cilium.io\n  ips:\n  - \"192.0.2.10\"\n",
            ca.fingerprint()
        );
        assert_eq!(String::from_utf8_lossy(text.expose()), expected);
    }

    #[test]
    fn another_ca_is_another_text() {
        let with = |ca: &[u8]| {
            remote(
                &name(),
                &endpoint(false),
                Client::Own,
                &SecretBytes::new(ca),
            )
        };
        assert_ne!(with(b"one"), with(b"two"));
        assert!(String::from_utf8_lossy(with(b"one").expose()).contains("/b.etcd-client-ca.crt\n"));
    }

    #[test]
    fn the_own_etcd_is_reached_by_its_service() {
        let text = local(&name(), "cilium", Client::Local, &SecretBytes::new(b"CA"));
        let text = String::from_utf8_lossy(text.expose());
        assert!(
            text.contains("- https://clustermesh-apiserver.cilium.svc:2379\n")
                && text.contains("/local-etcd-client.key\n"),
            "{text}"
        );
    }

    fn read(text: &str) -> ClientConfig {
        ClientConfig::read(&SecretBytes::new(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_configuration_of_ours_is_read_back() {
        for aliased in [true, false] {
            let config = remote(
                &name(),
                &endpoint(aliased),
                Client::Own,
                &SecretBytes::new(b"CA"),
            );
            let config = ClientConfig::read(&config).unwrap();
            assert_eq!(config.endpoint(|_| None).unwrap(), endpoint(aliased));
            let names = config
                .files()
                .map(|(_, path)| ClientConfig::file_name(path.unwrap()).unwrap().to_owned());
            assert_eq!(
                names,
                [
                    "b.etcd-client-ca.crt",
                    "b.etcd-client.crt",
                    "b.etcd-client.key"
                ]
            );
        }
    }

    #[test]
    fn a_configuration_of_others_is_read_in_any_style() {
        let flow = "{endpoints: ['https://[2001:db8::1]:2379/', \"https://192.0.2.9:1\"], cilium-host-aliases: [], other: 1}";
        let found = read(flow).endpoint(|_| None).unwrap();
        assert_eq!(
            (found.hosts, found.port, found.name),
            (vec!["2001:db8::1".to_owned()], 2379, None)
        );
        let named = read("endpoints:\n- https://lb.example:2379\n")
            .endpoint(|name| Some(vec![format!("ip of {name}")]))
            .unwrap();
        assert_eq!(
            (named.hosts, named.name.as_deref()),
            (vec!["ip of lb.example".to_owned()], Some("lb.example"))
        );
    }

    #[test]
    fn a_configuration_that_leads_nowhere_says_why() {
        for (text, why) in [
            ("endpoints: []", "it has no endpoint"),
            (
                "endpoints: [http://a:1]",
                "an endpoint is not https://host:port",
            ),
            (
                "endpoints: [https://a]",
                "an endpoint is not https://host:port",
            ),
        ] {
            assert_eq!(read(text).endpoint(|_| None).unwrap_err(), why);
        }
        for text in ["endpoints: nowhere", "x", "", "endpoints: [", "- endpoints"] {
            assert!(
                ClientConfig::read(&SecretBytes::new(text.as_bytes())).is_none(),
                "{text}"
            );
        }
        let long = format!("endpoints: [https://a:1]\n#{}", "x".repeat(LONGEST));
        assert!(ClientConfig::read(&SecretBytes::new(long.as_bytes())).is_none());
    }

    #[test]
    fn the_files_of_the_volume_are_known_by_their_names() {
        assert_eq!(
            projected("common-etcd-client-ca.crt"),
            Some((false, "-ca.crt"))
        );
        assert_eq!(projected("local-etcd-client.key"), Some((true, ".key")));
        for other in [
            "b.etcd-client.crt",
            "common-etcd-client",
            "common-etcd-clientx.crt",
        ] {
            assert_eq!(projected(other), None, "{other}");
        }
        for path in [
            "/etc/passwd",
            "/var/lib/cilium/clustermesh",
            "/var/lib/cilium/clustermesh/../x",
            "b.crt",
        ] {
            assert_eq!(ClientConfig::file_name(path), None, "{path}");
        }
    }

    #[test]
    fn a_key_tells_its_remote() {
        for key in [
            "b",
            "b.etcd-client-ca.crt",
            "b.etcd-client.crt",
            "b.etcd-client.key",
        ] {
            assert_eq!(remote_of(key), "b");
        }
        assert_eq!(
            remote_of("common-etcd-client.crt"),
            "common-etcd-client.crt"
        );
    }

    #[test]
    fn an_address_is_found_in_either_form() {
        let ca = SecretBytes::new(b"CA");
        for aliased in [true, false] {
            let text = remote(&name(), &endpoint(aliased), Client::Common, &ca);
            assert!(mentions(&text, "192.0.2.10"));
            assert!(!mentions(&text, "192.0.2.1") && !mentions(&text, "92.0.2.10"));
        }
        assert!(mentions(
            &SecretBytes::new(b"endpoints:\n- https://[2001:db8::1]:2379\n"),
            "2001:db8::1"
        ));
    }
}
