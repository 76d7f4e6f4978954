//! Reads a cluster's certificates from its Secrets, for the planner. A Secret
//! that exists but can't be parsed is unknown, with the key and the reason. The
//! planner decides whether a certificate is still valid.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::ByteString;
use mw_api::cilium::observe::{self, client_files, helm_marks, maker};
use mw_api::cilium::target::Secret;
use mw_core::cilium::facts::{CaId, Certificate, Certificates, RootCa, SecretSeen};
use mw_core::cilium::secret::SecretBytes;
use mw_core::seen::Seen;
use mw_core::time::Timestamp;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

pub const ROOT: &str = "cilium-ca";
pub const SERVER: &str = "clustermesh-apiserver-server-cert";
pub const REMOTE: &str = "clustermesh-apiserver-remote-cert";
pub const LOCAL: &str = "clustermesh-apiserver-local-cert";

const CA_FILE: &str = "ca.crt";
const CERTIFICATE_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";
/// Limits signature checks, which take time: the files come from the cluster's owner.
const MOST_CERTIFICATES: usize = 64;
const LONGEST_CHAIN: usize = 8;

/// Reads the certificates of one cluster. `secrets` is complete: a Secret that
/// is not in it does not exist.
pub fn certificates<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Certificates {
    let (mut root, mut server, mut remote, mut local) = (
        Seen::Known(None),
        Seen::Known(None),
        Seen::Known(None),
        Seen::Known(None),
    );
    for secret in secrets {
        match secret.metadata.name.as_deref() {
            Some(ROOT) => root = seen(ROOT, root_ca(secret).map(Some)),
            Some(SERVER) => server = seen(SERVER, certificate(secret)),
            Some(REMOTE) => remote = seen(REMOTE, certificate(secret)),
            Some(LOCAL) => local = seen(LOCAL, certificate(secret)),
            _ => {}
        }
    }
    Certificates {
        root,
        root_withheld: false,
        server,
        remote,
        local,
    }
}

fn seen<T>(name: &str, read: Result<T, String>) -> Seen<T> {
    read.map_or_else(
        |wrong| Seen::Unknown(format!("Secret {name}: {wrong}")),
        Seen::Known,
    )
}

fn root_ca(secret: &Secret) -> Result<RootCa, String> {
    // cert-manager stores the CA certificate in tls.crt.
    let (key, bytes) = [CA_FILE, CERTIFICATE_FILE]
        .into_iter()
        .find_map(|key| Some((key, filled(secret, key)?)))
        .ok_or_else(|| format!("missing {CA_FILE} (or {CERTIFICATE_FILE})"))?;
    let ders = read_pem(key, &bytes.0)?;
    let found = parse(key, &ders)?;
    let (ca, not_after) = found
        .first()
        .map(|ca| (id(ca), end(ca)))
        .ok_or_else(|| no_certificate(key))?;
    let (helm_labels, helm_annotations) = helm_marks(&secret.metadata);
    Ok(RootCa {
        ca,
        certificate: SecretBytes::new(&bytes.0),
        key: filled(secret, "ca.key").map(|bytes| SecretBytes::new(&bytes.0)),
        helm_labels,
        helm_annotations,
        not_after,
        maker: maker(&secret.metadata),
    })
}

fn filled<'a>(secret: &'a Secret, key: &str) -> Option<&'a ByteString> {
    secret.data.get(key).filter(|bytes| !bytes.0.is_empty())
}

/// Returns None if the Secret has not been filled yet.
fn certificate(secret: &Secret) -> Result<Option<Certificate>, String> {
    let lacking: Vec<&str> = [CA_FILE, CERTIFICATE_FILE, KEY_FILE]
        .into_iter()
        .filter(|key| filled(secret, key).is_none())
        .collect();
    let Some(files) = client_files(secret) else {
        return if lacking.len() == 3 {
            Ok(None)
        } else {
            Err(format!("missing {}", lacking.join(", ")))
        };
    };
    let (trusted, chain) = (
        read_pem(CA_FILE, files.ca.expose())?,
        read_pem(CERTIFICATE_FILE, files.certificate.expose())?,
    );
    let (trusted, chain) = (parse(CA_FILE, &trusted)?, parse(CERTIFICATE_FILE, &chain)?);
    let [leaf, above @ ..] = chain.as_slice() else {
        return Err(no_certificate(CERTIFICATE_FILE));
    };
    if trusted.is_empty() {
        return Err(no_certificate(CA_FILE));
    }
    PrivateKeyDer::from_pem_slice(files.key.expose())
        .map_err(|_| format!("{KEY_FILE} is not a PEM private key"))?;
    Ok(Some(Certificate {
        issuer: issuer(leaf, above, &trusted),
        trusts: trusted.iter().map(id).collect(),
        common_name: leaf
            .subject()
            .iter_common_name()
            .find_map(|name| name.as_str().ok())
            .unwrap_or_default()
            .to_owned(),
        names: names(leaf),
        not_after: end(leaf),
        ca_not_after: trusted.iter().map(end).min().unwrap_or_default(),
        maker: maker(&secret.metadata),
        files,
    }))
}

fn end(certificate: &X509Certificate<'_>) -> Timestamp {
    Timestamp(certificate.validity().not_after.timestamp())
}

/// Reads a connection Secret and the expiry times of the certificates in it.
pub fn connection_secret(secret: &Secret) -> SecretSeen {
    SecretSeen {
        ends: ends(secret),
        ..observe::connection_secret(secret)
    }
}

/// Returns the earliest expiry in each file. A file that can't be parsed is left
/// out: the dial that uses it fails and reports it.
fn ends(secret: &Secret) -> BTreeMap<String, Timestamp> {
    let files = secret.data.iter().filter(|(key, _)| {
        key.ends_with(".etcd-client.crt") || key.ends_with(".etcd-client-ca.crt")
    });
    let first_end = |(key, bytes): (&String, &ByteString)| {
        let ders = read_pem(key, &bytes.0).ok()?;
        let end = parse(key, &ders).ok()?.iter().map(end).min()?;
        Some((key.clone(), end))
    };
    files.filter_map(first_end).collect()
}

fn no_certificate(key: &str) -> String {
    format!("{key} contains no PEM certificate")
}

fn read_pem(key: &str, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes)
        .take(MOST_CERTIFICATES + 1)
        .collect();
    match found {
        Err(_) => Err(format!("{key} is not valid PEM")),
        Ok(ders) if ders.len() > MOST_CERTIFICATES => Err(format!(
            "{key} contains more than {MOST_CERTIFICATES} certificates"
        )),
        Ok(ders) => Ok(ders),
    }
}

fn parse<'a>(
    key: &str,
    ders: &'a [CertificateDer<'static>],
) -> Result<Vec<X509Certificate<'a>>, String> {
    let parsed = ders
        .iter()
        .map(|der| match x509_parser::parse_x509_certificate(der) {
            Ok(([], certificate)) => Ok(certificate),
            _ => Err(format!(
                "{key} contains data that is not an X.509 certificate"
            )),
        });
    parsed.collect()
}

/// Identifies a CA by its name and key. A reissued CA stays the same: trusting
/// one of its certificates means trusting what it signed with the others.
fn id(ca: &X509Certificate<'_>) -> CaId {
    hashed(b"ca", &[ca.subject().as_raw(), ca.public_key().raw])
}

/// Returns the CA in ca.crt that the leaf chains up to, through the intermediates
/// in tls.crt.
fn issuer(
    leaf: &X509Certificate<'_>,
    above: &[X509Certificate<'_>],
    trusted: &[X509Certificate<'_>],
) -> CaId {
    let mut signed = leaf;
    for _ in 0..LONGEST_CHAIN {
        if let Some(ca) = trusted.iter().find(|ca| has_signed(ca, signed)) {
            return id(ca);
        }
        match above.iter().find(|by| has_signed(by, signed)) {
            Some(by) => signed = by,
            None => break,
        }
    }
    stranger(leaf)
}

fn has_signed(ca: &X509Certificate<'_>, signed: &X509Certificate<'_>) -> bool {
    ca.subject().as_raw() == signed.issuer().as_raw()
        && signed.verify_signature(Some(ca.public_key())).is_ok()
}

/// Identifies an issuer that is not in ca.crt; equal to no trusted CA.
fn stranger(leaf: &X509Certificate<'_>) -> CaId {
    let key = leaf
        .iter_extensions()
        .find_map(|of| match of.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(of) => {
                of.key_identifier.as_ref().map(|id| id.0)
            }
            _ => None,
        });
    hashed(
        b"stranger",
        &[leaf.issuer().as_raw(), key.unwrap_or_default()],
    )
}

fn hashed(kind: &[u8], parts: &[&[u8]]) -> CaId {
    let mut hash = Sha256::new_with_prefix(kind);
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    CaId(hex::encode(hash.finalize()))
}

/// The DNS names and addresses that a certificate is valid for.
fn names(leaf: &X509Certificate<'_>) -> Vec<String> {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|of| &of.value.general_names);
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    struct Ca {
        params: CertificateParams,
        key: KeyPair,
        pem: String,
    }

    fn ca_params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    fn ca(name: &str) -> Ca {
        let (params, key) = (ca_params(name), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { params, key, pem }
    }

    impl Ca {
        fn signs(&self, params: &CertificateParams, key: &KeyPair) -> String {
            params
                .signed_by(key, &Issuer::from_params(&self.params, &self.key))
                .unwrap()
                .pem()
        }

        fn below(&self, name: &str) -> Ca {
            let (params, key) = (ca_params(name), KeyPair::generate().unwrap());
            let pem = self.signs(&params, &key);
            Ca { params, key, pem }
        }

        /// tls.crt and tls.key.
        fn leaf(&self) -> [String; 2] {
            let names = ["*.mesh.cilium.io", "192.0.2.1", "2001:db8::1"].map(str::to_owned);
            let mut params = CertificateParams::new(names).unwrap();
            params
                .distinguished_name
                .push(DnType::CommonName, "remote-a");
            params.not_after = date_time_ymd(2030, 1, 2);
            params.use_authority_key_identifier_extension = true;
            let key = KeyPair::generate().unwrap();
            [self.signs(&params, &key), key.serialize_pem()]
        }
    }

    fn secret(name: &str, data: &[(&str, &str)]) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())))
            .collect();
        secret
    }

    fn issued(ca_file: &str, [certificate, key]: &[String; 2]) -> Secret {
        secret(
            SERVER,
            &[
                (CA_FILE, ca_file),
                (CERTIFICATE_FILE, certificate),
                (KEY_FILE, key),
            ],
        )
    }

    fn server(secret: &Secret) -> Certificate {
        certificates([secret])
            .server
            .known()
            .cloned()
            .expect("unreadable")
            .expect("absent")
    }

    fn root(secret: &Secret) -> RootCa {
        certificates([secret])
            .root
            .known()
            .cloned()
            .expect("unreadable")
            .expect("absent")
    }

    fn root_id(ca: &Ca) -> CaId {
        root(&secret(ROOT, &[(CA_FILE, &ca.pem)])).ca
    }

    fn wrong(secret: &Secret) -> String {
        certificates([secret])
            .server
            .why_unknown()
            .expect("it was understood")
            .to_owned()
    }

    #[test]
    fn a_certificate_is_read_with_its_names_its_end_and_its_issuer() {
        let ca = ca("Cilium CA");
        let leaf = ca.leaf();
        let read = server(&issued(&ca.pem, &leaf));
        assert_eq!(read.names, ["*.mesh.cilium.io", "192.0.2.1", "2001:db8::1"]);
        assert_eq!(
            (read.common_name.as_str(), read.not_after),
            ("remote-a", Timestamp(1_893_542_400))
        );
        assert_eq!(
            read.ca_not_after,
            root(&secret(ROOT, &[(CA_FILE, &ca.pem)])).not_after
        );
        let copied = secret(
            "cilium-kvstoremesh",
            &[
                ("b", "endpoints: []"),
                ("b.etcd-client.crt", &leaf[0]),
                ("c.etcd-client.crt", "?"),
            ],
        );
        assert_eq!(
            ends(&copied),
            BTreeMap::from([("b.etcd-client.crt".to_owned(), Timestamp(1_893_542_400))])
        );
        assert_eq!(
            (
                &read.issuer,
                read.trusts.contains(&read.issuer),
                read.trusts.len()
            ),
            (&root_id(&ca), true, 1)
        );
        assert_eq!(
            [read.files.certificate.expose(), read.files.key.expose()],
            [leaf[0].as_bytes(), leaf[1].as_bytes()]
        );
    }

    #[test]
    fn what_is_not_there_is_absent() {
        let of = certificates(&[secret("other", &[]), secret(LOCAL, &[("tls.crt", "")])]);
        assert_eq!(
            of,
            Certificates {
                root: Seen::Known(None),
                root_withheld: false,
                server: Seen::Known(None),
                remote: Seen::Known(None),
                local: Seen::Known(None),
            }
        );
    }

    #[test]
    fn cas_of_one_name_differ_by_their_keys_and_a_renewed_one_stays_the_same() {
        let (one, two) = (ca("Cilium CA"), ca("Cilium CA"));
        assert_ne!(root_id(&one), root_id(&two));
        let mut renewed = one.params.clone();
        renewed.not_after = date_time_ymd(2031, 1, 1);
        let renewed = renewed.self_signed(&one.key).unwrap().pem();
        assert_ne!(renewed, one.pem);
        assert_eq!(
            root(&secret(ROOT, &[(CA_FILE, &renewed)])).ca,
            root_id(&one)
        );
        let renamed = ca_params("other").self_signed(&one.key).unwrap().pem();
        assert_ne!(
            root(&secret(ROOT, &[(CA_FILE, &renamed)])).ca,
            root_id(&one)
        );
    }

    #[test]
    fn of_a_bundle_the_one_that_signed_is_the_issuer() {
        let (one, two, other) = (ca("Cilium CA"), ca("Cilium CA"), ca("other"));
        let read = server(&issued(
            &[one.pem.as_str(), &two.pem, &other.pem].concat(),
            &two.leaf(),
        ));
        assert_eq!((read.issuer, read.trusts.len()), (root_id(&two), 3));
    }

    #[test]
    fn an_issuer_that_is_not_in_the_bundle_equals_none() {
        let (one, two) = (ca("Cilium CA"), ca("Cilium CA"));
        let by_two = server(&issued(&one.pem, &two.leaf()));
        assert!(!by_two.trusts.contains(&by_two.issuer) && by_two.issuer != root_id(&two));
        let by_third = server(&issued(&one.pem, &ca("Cilium CA").leaf()));
        assert_ne!(by_two.issuer, by_third.issuer);
    }

    #[test]
    fn a_chain_leads_to_the_ca_that_is_trusted() {
        let root = ca("root");
        let below = root.below("between");
        let [leaf, key] = below.leaf();
        let read = server(&issued(
            &root.pem,
            &[[leaf, below.pem.clone()].concat(), key],
        ));
        assert_eq!(read.issuer, root_id(&root));
        let twisted = below.leaf();
        let circle = server(&issued(
            &ca("x").pem,
            &[
                [twisted[0].as_str(), &below.pem, &root.pem].concat(),
                twisted[1].clone(),
            ],
        ));
        assert!(!circle.trusts.contains(&circle.issuer));
    }

    #[test]
    fn the_ca_of_helm_and_that_of_cert_manager_are_both_found() {
        let ca = ca("Cilium CA");
        let mut by_helm = secret(
            ROOT,
            &[(CA_FILE, &ca.pem), ("ca.key", &ca.key.serialize_pem())],
        );
        by_helm.metadata.labels = Some(BTreeMap::from([(
            "app.kubernetes.io/managed-by".to_owned(),
            "Helm".to_owned(),
        )]));
        let by_helm = root(&by_helm);
        assert_eq!(
            (
                by_helm.helm_labels.len(),
                by_helm.key.is_some(),
                by_helm.certificate.expose()
            ),
            (1, true, ca.pem.as_bytes())
        );
        let by_manager = root(&secret(
            ROOT,
            &[(CERTIFICATE_FILE, &ca.pem), (KEY_FILE, "x")],
        ));
        assert_eq!((&by_manager.ca, &by_manager.key), (&by_helm.ca, &None));
    }

    #[test]
    fn what_cannot_be_understood_is_unknown_and_says_which_key() {
        let ca = ca("Cilium CA");
        let [leaf, key] = ca.leaf();
        let good = issued(&ca.pem, &[leaf.clone(), key.clone()]);
        let with = |file: &str, text: &str| {
            let mut bad = good.clone();
            bad.data
                .insert(file.to_owned(), ByteString(text.as_bytes().to_vec()));
            wrong(&bad)
        };
        let der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (file, text, says) in [
            (
                CERTIFICATE_FILE,
                "garbage",
                "tls.crt contains no PEM certificate",
            ),
            (
                CERTIFICATE_FILE,
                key.as_str(),
                "tls.crt contains no PEM certificate",
            ),
            (
                CERTIFICATE_FILE,
                der,
                "tls.crt contains data that is not an X.509 certificate",
            ),
            (
                CERTIFICATE_FILE,
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
                "tls.crt is not valid PEM",
            ),
            (
                CERTIFICATE_FILE,
                "-----BEGIN CERTIFICATE-----\nAAAA",
                "tls.crt is not valid PEM",
            ),
            (CERTIFICATE_FILE, "", "missing tls.crt"),
            (CA_FILE, "garbage", "ca.crt contains no PEM certificate"),
            (
                CA_FILE,
                &[ca.pem.as_str(), der].concat(),
                "ca.crt contains data that is not an X.509 certificate",
            ),
            (
                CA_FILE,
                &ca.pem.repeat(65),
                "ca.crt contains more than 64 certificates",
            ),
            (KEY_FILE, leaf.as_str(), "tls.key is not a PEM private key"),
        ] {
            assert_eq!(
                with(file, text),
                format!("Secret clustermesh-apiserver-server-cert: {says}")
            );
        }
        let cut = &leaf[..leaf.len() / 2];
        assert!(with(CERTIFICATE_FILE, cut).contains("tls.crt is not valid PEM"));
        let bare = certificates(&[secret(ROOT, &[("ca.key", "x")])]);
        assert_eq!(
            bare.root.why_unknown(),
            Some("Secret cilium-ca: missing ca.crt (or tls.crt)")
        );
    }

    #[test]
    fn no_key_is_ever_shown() {
        let ca = ca("Cilium CA");
        let leaf = ca.leaf();
        let secrets = [
            issued(&ca.pem, &leaf),
            secret(
                ROOT,
                &[(CA_FILE, &ca.pem), ("ca.key", &ca.key.serialize_pem())],
            ),
        ];
        let shown = format!("{:?}", certificates(&secrets));
        assert!(
            !shown.contains("PRIVATE")
                && !shown.contains("45, 45, 45")
                && shown.contains("redacted"),
            "{shown}"
        );
        let swapped = format!(
            "{:?}",
            certificates(&[issued(&leaf[1], &[leaf[1].clone(), leaf[1].clone()])])
        );
        assert!(!swapped.contains("PRIVATE"), "{swapped}");
    }
}
