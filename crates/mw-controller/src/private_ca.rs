//! Private CAs of API servers. A server that is verified against a private CA
//! was set up by a holder of the CA's key; a certificate of a public CA proves
//! nothing, since anyone can get one.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use mw_core::cilium::facts::CaId;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;

/// The public keys of the system's root certificates.
static PUBLIC: LazyLock<BTreeSet<Vec<u8>>> = LazyLock::new(|| {
    let roots = rustls_native_certs::load_native_certs().certs;
    roots
        .iter()
        .filter_map(|root| {
            Some(
                x509_parser::parse_x509_certificate(root)
                    .ok()?
                    .1
                    .public_key()
                    .raw
                    .to_vec(),
            )
        })
        .collect()
});

/// Identifies the CA in a PEM text that holds exactly one certificate, the root
/// of a private CA.
pub fn private_ca(pem: &[u8]) -> Option<CaId> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .ok()?;
    let [only] = certificates.as_slice() else {
        return None;
    };
    let (_, certificate) = x509_parser::parse_x509_certificate(only).ok()?;
    let private = is_root(&certificate) && !PUBLIC.contains(certificate.public_key().raw);
    private.then(|| CaId(hex::encode(Sha256::digest(only))))
}

fn is_root(certificate: &X509Certificate<'_>) -> bool {
    certificate.is_ca()
        && certificate.subject() == certificate.issuer()
        && certificate.verify_signature(None).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    fn ca(params: &mut CertificateParams) -> &mut CertificateParams {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    #[test]
    fn exactly_one_root_of_its_own_counts() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        let root = ca(&mut params).self_signed(&key).unwrap();
        let found = private_ca(root.pem().as_bytes());
        assert!(found.is_some());
        assert_eq!(
            private_ca(format!("# a comment\n{}", root.pem()).as_bytes()),
            found
        );
        assert_eq!(
            private_ca(format!("{0}{0}", root.pem()).as_bytes()),
            None,
            "of several any may have vouched"
        );
        let issuer = Issuer::from_params(&params, &key);
        let below = KeyPair::generate().unwrap();
        let mut intermediate = CertificateParams::new(vec![]).unwrap();
        intermediate
            .distinguished_name
            .push(rcgen::DnType::CommonName, "below");
        let intermediate = ca(&mut intermediate).signed_by(&below, &issuer).unwrap();
        assert_eq!(
            private_ca(intermediate.pem().as_bytes()),
            None,
            "it may be below a public root"
        );
        let server = CertificateParams::new(vec!["server".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        assert_eq!(
            (
                private_ca(server.pem().as_bytes()),
                private_ca(b"nonsense"),
                private_ca(b"")
            ),
            (None, None, None)
        );
    }

    #[test]
    fn a_root_of_the_system_is_public() {
        let roots = rustls_native_certs::load_native_certs().certs;
        let Some(root) = roots.first() else { return };
        let body = <base64ct::Base64 as base64ct::Encoding>::encode_string(root);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        assert_eq!(private_ca(pem.as_bytes()), None);
    }
}
