//! The files of one remote in Cilium's clustermesh folder: the etcd client
//! configuration under the remote's name, and client files of its own where the
//! reader's are no good there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::cilium::endpoint::Endpoint;
use crate::cilium::facts::ClientFiles;
use crate::cilium::secret::SecretBytes;
use crate::names::CiliumName;

const FOLDER: &str = "/var/lib/cilium/clustermesh";
const OWN: &str = ".etcd-client";

/// Which client files a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Those of the reader for all remotes.
    Common,
    /// Those of the reader for its own etcd.
    Local,
    /// Some that come with the remote.
    Own,
}

impl Client {
    fn stem(self, remote: &CiliumName) -> String {
        match self {
            Client::Common => "common-etcd-client".to_owned(),
            Client::Local => "local-etcd-client".to_owned(),
            Client::Own => format!("{remote}{OWN}"),
        }
    }

    /// A file that is there where all three are.
    pub(super) fn certificate(self, remote: &CiliumName) -> String {
        format!("{}.crt", self.stem(remote))
    }
}

/// The configuration of a remote's endpoint. Cilium reads the CA only when it
/// connects, and connects anew when this text changes: hence the hash of it.
pub(super) fn remote(name: &CiliumName, endpoint: &Endpoint, client: Client, ca: &SecretBytes) -> SecretBytes {
    let mut text = config(&endpoint.urls, &client.stem(name), ca);
    if let (true, Some(host)) = (endpoint.aliased, &endpoint.name) {
        text.push_str(&format!("cilium-host-aliases:\n- hostname: {host}\n  ips:\n"));
        text.extend(endpoint.hosts.iter().map(|ip| format!("  - \"{ip}\"\n")));
    }
    SecretBytes::new(text.as_bytes())
}

/// The configuration under a remote's name of the reader's own etcd, which
/// KVStoreMesh fills.
pub(super) fn local(name: &CiliumName, namespace: &str, client: Client, ca: &SecretBytes) -> SecretBytes {
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

/// The remote's own client files, by key.
pub(super) fn own_files(name: &CiliumName, files: &ClientFiles) -> BTreeMap<String, SecretBytes> {
    let stem = Client::Own.stem(name);
    let ClientFiles { ca, certificate, key } = files;
    [("-ca.crt", ca), (".crt", certificate), (".key", key)]
        .into_iter()
        .map(|(end, bytes)| (format!("{stem}{end}"), bytes.clone()))
        .collect()
}

/// The remote that a key is about.
pub(super) fn remote_of(key: &str) -> &str {
    let ends = ["-ca.crt", ".crt", ".key"].map(|end| format!("{OWN}{end}"));
    ends.iter().find_map(|end| key.strip_suffix(end.as_str())).unwrap_or(key)
}

/// Whether a configuration mentions an address.
pub(super) fn mentions(config: &SecretBytes, address: &str) -> bool {
    has_host(config, |host| host == address)
}

/// Whether a configuration mentions any address, and not only names.
pub(super) fn has_address(config: &SecretBytes) -> bool {
    has_host(config, |host| host.parse::<IpAddr>().is_ok())
}

fn has_host(config: &SecretBytes, is: impl Fn(&str) -> bool) -> bool {
    let text = String::from_utf8_lossy(config.expose());
    let apart = |c: char| !(c.is_ascii_hexdigit() || c == '.' || c == ':');
    text.lines().any(|line| {
        let line = line.trim().trim_start_matches("- ").trim_start_matches("https://");
        let host = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .map_or_else(|| line.split(apart).find(|part| !part.is_empty()).unwrap_or_default(), |(host, _)| host);
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
        Endpoint { urls: vec![format!("https://{host}:2379")], hosts: vec!["192.0.2.10".to_owned()], port: 2379, name, aliased }
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
        let with = |ca: &[u8]| remote(&name(), &endpoint(false), Client::Own, &SecretBytes::new(ca));
        assert_ne!(with(b"one"), with(b"two"));
        assert!(String::from_utf8_lossy(with(b"one").expose()).contains("/b.etcd-client-ca.crt\n"));
    }

    #[test]
    fn the_own_etcd_is_reached_by_its_service() {
        let text = local(&name(), "cilium", Client::Local, &SecretBytes::new(b"CA"));
        let text = String::from_utf8_lossy(text.expose());
        assert!(text.contains("- https://clustermesh-apiserver.cilium.svc:2379\n") && text.contains("/local-etcd-client.key\n"), "{text}");
    }

    #[test]
    fn a_key_tells_its_remote() {
        for key in ["b", "b.etcd-client-ca.crt", "b.etcd-client.crt", "b.etcd-client.key"] {
            assert_eq!(remote_of(key), "b");
        }
        assert_eq!(remote_of("common-etcd-client.crt"), "common-etcd-client.crt");
    }

    #[test]
    fn an_address_is_found_in_either_form() {
        let ca = SecretBytes::new(b"CA");
        for aliased in [true, false] {
            let text = remote(&name(), &endpoint(aliased), Client::Common, &ca);
            assert!(mentions(&text, "192.0.2.10"));
            assert!(!mentions(&text, "192.0.2.1") && !mentions(&text, "92.0.2.10"));
        }
        assert!(mentions(&SecretBytes::new(b"endpoints:\n- https://[2001:db8::1]:2379\n"), "2001:db8::1"));
    }
}
