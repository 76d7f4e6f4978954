//! Reads for `meshwright doctor`: for each cluster of the selected meshes the
//! credentials, the API server and the permissions, in this order. Each step needs
//! the one before. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join, join_all};
use kube::api::ListParams;
use kube::{Api, Client};
use mw_api::kilo::peer::Peer;
use mw_api::rbac::{hub_rules, member_rules, namespace_rules};
use mw_core::time::Timestamp;

use crate::doctor::rights::{Granted, Who, granted, rights};
use crate::failure::Failure;
use crate::fleet::Source;
use crate::kilo::record::Record;
use crate::kilo::snapshot::{Snapshot, SnapshotError, SnapshotReader, visible_meshes};
use crate::published_status::Interest;

/// Results of all reads.
#[derive(Debug)]
pub struct Examination {
    /// The hub first.
    pub clusters: Vec<Examined>,
    pub snapshot: Result<Snapshot, SnapshotError>,
}

/// Results for one cluster. Steps that were not reached are None.
#[derive(Debug)]
pub struct Examined {
    /// Name of the cluster in a selected mesh.
    pub name: String,
    pub source: Source,
    /// Expiry of the credentials, if any; or why there are none.
    pub credentials: Result<Option<Timestamp>, String>,
    /// Version of the API server.
    pub answers: Option<Result<String, Failure>>,
    pub rights: Option<Result<Granted, Failure>>,
    /// True if the Peer CRD is installed.
    pub peers: Option<Result<bool, Failure>>,
}

/// The service account of the operator on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorAccount {
    pub namespace: String,
    pub name: String,
}

impl SnapshotReader {
    pub async fn examine(&self, interest: &Interest, operator: &OperatorAccount) -> Examination {
        let (names, namespaces) = match visible_meshes(&self.hub, interest).await {
            Ok((objects, _)) => concerned(
                &objects.iter().map(Record::read).collect::<Vec<_>>(),
                interest,
            ),
            // The snapshot below reports the error.
            Err(_) => (
                BTreeMap::from([(Source::Hub, "the hub".to_owned())]),
                BTreeSet::new(),
            ),
        };
        let visits = names
            .iter()
            .map(|(source, name)| self.examine_one(source, name, operator, &namespaces));
        let (clusters, snapshot) = join(join_all(visits), self.snapshot(interest)).await;
        Examination { clusters, snapshot }
    }

    async fn examine_one(
        &self,
        source: &Source,
        name: &str,
        operator: &OperatorAccount,
        namespaces: &BTreeSet<String>,
    ) -> Examined {
        let nothing = |credentials| Examined {
            name: name.to_owned(),
            source: source.clone(),
            credentials,
            answers: None,
            rights: None,
            peers: None,
        };
        let connection = match self.connection(source).await {
            Ok(connection) => connection,
            Err((_, why)) => return nothing(Err(why)),
        };
        let (client, examined) = (connection.client, nothing(Ok(connection.ends)));
        let version = client
            .apiserver_version()
            .await
            .map(|version| version.git_version)
            .map_err(|error| Failure::of(&error));
        if version.is_err() {
            return Examined {
                answers: Some(version),
                ..examined
            };
        }
        let rights = async {
            match source {
                Source::Hub => granted_on_hub(&client, operator, namespaces).await,
                Source::Secret { .. } => {
                    granted(&client, Who::Myself, &rights(&member_rules(), None)).await
                }
            }
        };
        let (rights, peers) = join(rights, knows_peers(&client)).await;
        Examined {
            answers: Some(version),
            rights: Some(rights),
            peers: Some(peers),
            ..examined
        }
    }
}

/// Returns the clusters of the selected meshes with their names, and the
/// namespaces of those meshes.
fn concerned(
    records: &[Record],
    interest: &Interest,
) -> (BTreeMap<Source, String>, BTreeSet<String>) {
    let asked = || {
        records
            .iter()
            .filter(|record| interest.includes(record.id()))
    };
    let mut names = BTreeMap::from([(Source::Hub, "the hub".to_owned())]);
    names.extend(asked().flat_map(Record::reaches));
    (
        names,
        asked()
            .map(|record| record.id().namespace.clone())
            .collect(),
    )
}

/// Returns what the operator's account may do. A caller that may not ask about other accounts may be that account itself.
async fn granted_on_hub(
    client: &Client,
    operator: &OperatorAccount,
    namespaces: &BTreeSet<String>,
) -> Result<Granted, Failure> {
    let mut needed = rights(&[member_rules(), hub_rules()].concat(), None);
    needed.extend(
        namespaces
            .iter()
            .flat_map(|namespace| rights(&namespace_rules(), Some(namespace))),
    );
    let account = Who::Account {
        namespace: &operator.namespace,
        name: &operator.name,
    };
    match granted(client, account, &needed).await {
        Err(Failure::Forbidden(_)) => match granted(client, Who::Myself, &needed).await? {
            Granted::Without(_) => Ok(Granted::Unknown),
            all => Ok(all),
        },
        other => other,
    }
}

async fn knows_peers(client: &Client) -> Result<bool, Failure> {
    let peers: Api<Peer> = Api::all(client.clone());
    match peers
        .list_metadata(&ListParams::default().limit(1))
        .await
        .map_err(|error| Failure::of(&error))
    {
        Ok(_) => Ok(true),
        Err(Failure::NotFound(_)) => Ok(false),
        // Either it exists, or the missing permission is reported anyway.
        Err(Failure::Forbidden(_)) => Ok(true),
        Err(failure) => Err(failure),
    }
}
