//! Certificates that expire soon, and the command that renews each with the
//! method that issued it. Reported in a condition, without effect on the phase.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::cilium::context::Context;
use crate::cilium::facts::{Certificates, ClusterSeen, Maker};
use crate::cilium::membership::Mesh;
use crate::cilium::plan::{Condition, Status};
use crate::cilium::world::World;
use crate::condition::cilium::{kind, reason};
use crate::seen::Seen;
use crate::text::{listed, printable};
use crate::time::Timestamp;

/// Time before expiry from which a certificate is reported.
const SOON_SECONDS: u64 = 30 * 86_400;
const ROOT: &str = "cilium-ca";
const ISSUED: [&str; 3] = [
    "clustermesh-apiserver-server-cert",
    "clustermesh-apiserver-remote-cert",
    "clustermesh-apiserver-local-cert",
];
const MOST_TOLD: usize = 20;
/// Limit for messages, which contain names chosen by others.
const LONGEST_MESSAGE: usize = 1000;

/// Files that expire at the same time and are renewed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Each with its Secret.
    pub files: Vec<String>,
    /// The time of expiry.
    pub at: Timestamp,
    /// The way to renew all of them.
    pub renewal: Renewal,
}

/// The way to renew files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Renewal {
    /// A command to run in that cluster, and an alternative for clusters where
    /// it fails.
    Line {
        /// The command, safe to paste into a shell.
        typed: String,
        /// The alternative, with its condition.
        otherwise: Option<String>,
    },
    /// No single command: a description.
    Told(String),
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Renewal::Line {
                typed,
                otherwise: None,
            }
            | Renewal::Told(typed) => f.write_str(typed),
            Renewal::Line {
                typed,
                otherwise: Some(otherwise),
            } => write!(f, "{typed} ({otherwise})"),
        }
    }
}

/// One file, its expiry and its renewal.
type File = (String, Timestamp, Renewal);

/// The certificates of a cluster that expire within 30 days, the first to
/// expire first.
pub fn ending(seen: &ClusterSeen, now: Timestamp, namespace: &str) -> Vec<Ending> {
    let mut groups: BTreeMap<(Timestamp, Renewal), Vec<String>> = BTreeMap::new();
    for (file, at, renewal) in files(seen, namespace)
        .into_iter()
        .filter(|(_, at, _)| *at <= now.plus(SOON_SECONDS))
    {
        groups.entry((at, renewal)).or_default().push(file);
    }
    groups
        .into_iter()
        .map(|((at, renewal), files)| Ending { files, at, renewal })
        .collect()
}

fn files(seen: &ClusterSeen, namespace: &str) -> Vec<File> {
    let issued = seen
        .certificates
        .known()
        .into_iter()
        .flat_map(|of| issued(of, namespace));
    issued.chain(copied(seen)).collect()
}

/// The CAs, each once, and the certificates they issued.
fn issued(certificates: &Certificates, namespace: &str) -> Vec<File> {
    let all = ISSUED.into_iter().zip([
        &certificates.server,
        &certificates.remote,
        &certificates.local,
    ]);
    let all: Vec<_> = all
        .filter_map(|(name, of)| Some((name, of.known()?.as_ref()?)))
        .collect();
    let root = certificates.root.known().and_then(Option::as_ref);
    let of_root = root.map(|root| {
        (
            format!("ca.crt of Secret {ROOT}"),
            root.not_after,
            renew_ca(&root.maker, namespace),
        )
    });
    let of_leaves = all.iter().map(|(name, of)| {
        (
            format!("ca.crt of Secret {name}"),
            of.ca_not_after,
            renew_ca(&of.maker, namespace),
        )
    });
    let mut told = BTreeSet::new();
    let authorities = of_root
        .into_iter()
        .chain(of_leaves)
        .filter(|(_, at, _)| told.insert(*at));
    let leaves = all.iter().map(|(name, of)| {
        (
            format!("tls.crt of Secret {name}"),
            of.not_after,
            renew(&of.maker, namespace),
        )
    });
    authorities.chain(leaves).collect()
}

/// Client files of remotes that were copied into the connection Secrets.
fn copied(seen: &ClusterSeen) -> Vec<File> {
    let secrets = seen.secrets.known().into_iter().flatten();
    let files = secrets.flat_map(|(name, secret)| {
        secret.ends.iter().map(move |(key, at)| {
            let held = secret.keys.get(key);
            let by = held.filter(|held| !held.is_ours()).map(|held| held.others().join(", "));
            let renewal = match by {
                None => "updated automatically when clustermesh-apiserver-remote-cert of the remote is renewed".to_owned(),
                Some(by) => format!("renew it where it is managed{}", if by.is_empty() { by } else { format!(" ({by})") }),
            };
            (format!("{key} of Secret {}", name.as_str()), *at, Renewal::Told(renewal))
        })
    });
    files.collect()
}

/// Returns the command that shows the name and expiry of the admin certificate,
/// which is not read.
pub fn show_admin_certificate(namespace: &str) -> String {
    format!(
        "kubectl -n {namespace} get secret clustermesh-apiserver-admin-cert -o jsonpath='{{.data.tls\\.crt}}' | base64 --decode | \
         openssl x509 -noout -subject -enddate"
    )
}

fn renew(maker: &Maker, namespace: &str) -> Renewal {
    let helm = format!("helm upgrade cilium cilium/cilium -n {namespace} --reuse-values");
    match maker {
        Maker::Helm => Renewal::Line {
            typed: helm,
            otherwise: None,
        },
        Maker::CertManager(name) => Renewal::Line {
            typed: format!("cmctl renew -n {namespace} {name}"),
            otherwise: None,
        },
        // Jobs of earlier renewals may still exist, even from the same second.
        Maker::Job => Renewal::Line {
            typed: format!(
                "kubectl -n {namespace} create job --from=cronjob/clustermesh-apiserver-generate-certs \
                 clustermesh-apiserver-renew-$(date +%s)-$$"
            ),
            otherwise: Some(format!("without that CronJob: {helm}")),
        },
    }
}

/// Helm and certgen keep a CA while its Secret exists. A new CA invalidates
/// every certificate that the old one issued, so it needs preparation.
fn renew_ca(maker: &Maker, namespace: &str) -> Renewal {
    match maker {
        Maker::CertManager(_) => renew(maker, namespace),
        Maker::Helm | Maker::Job => Renewal::Told(format!(
            "in a maintenance window, because links are down until every certificate of the CA is reissued: \
             kubectl -n {namespace} delete secret {ROOT}, then {}",
            renew(maker, namespace)
        )),
    }
}

pub(super) fn condition(context: &Context<'_>, mesh: &Mesh<'_>) -> Option<Condition> {
    let World {
        now,
        options,
        clusters,
        ..
    } = context.world;
    let told = mesh
        .members()
        .into_iter()
        .filter_map(|id| Some((mesh.ref_of(id)?, clusters.get(id)?)))
        .flat_map(|(name, seen)| {
            ending(seen, *now, &options.cilium_namespace)
                .into_iter()
                .map(move |Ending { files, at, renewal }| {
                    let ends = if at <= *now { "expired" } else { "expires" };
                    let text = format!(
                        "cluster {}: {} {ends} {at}: {renewal}",
                        context.shown(mesh, name),
                        files.join(", ")
                    );
                    printable(&text, LONGEST_MESSAGE)
                })
        });
    let told: Vec<String> = told.collect();
    let message = listed(&told, MOST_TOLD);
    (!told.is_empty()).then_some(Condition {
        kind: kind::CERTIFICATES_EXPIRING,
        status: Status::True,
        reason: reason::ENDS_SOON,
        message,
    })
}

/// The times at which a certificate starts to expire soon, or expires.
pub(super) fn moments(world: &World) -> impl Iterator<Item = Timestamp> {
    let ends = world.clusters.values().flat_map(|seen| {
        let of = seen.certificates.known();
        let leaves = of
            .into_iter()
            .flat_map(|of| [&of.server, &of.remote, &of.local])
            .filter_map(Seen::known)
            .flatten();
        let root = of
            .and_then(|of| of.root.known()?.as_ref())
            .map(|root| root.not_after);
        let copied = seen
            .secrets
            .known()
            .into_iter()
            .flatten()
            .flat_map(|(_, secret)| secret.ends.values().copied());
        leaves
            .flat_map(|of| [of.not_after, of.ca_not_after])
            .chain(root)
            .chain(copied)
    });
    ends.flat_map(|end| [end.minus(SOON_SECONDS), end])
}
