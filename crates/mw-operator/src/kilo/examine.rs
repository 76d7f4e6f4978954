//! Each cluster of the meshes asked about, step by step: is there something to
//! connect with, does it answer, what may be done there. The next step is taken
//! only where the one before succeeded. Nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join, join_all};
use kube::api::ListParams;
use kube::{Api, Client};
use mw_api::peer::Peer;
use mw_api::rbac::{hub_rules, member_rules, namespace_rules};
use mw_core::time::Timestamp;

use crate::doctor::rights::{Granted, Who, granted, rights};
use crate::failure::Failure;
use crate::fleet::Source;
use crate::glance::Interest;
use crate::kilo::look::{Look, LookError, Looker, visible_meshes};
use crate::kilo::record::Record;

/// All that was seen.
#[derive(Debug)]
pub struct Examination {
    /// The hub first.
    pub clusters: Vec<Examined>,
    pub look: Result<Look, LookError>,
}

/// One cluster. What was not asked, because of what came before, is None.
#[derive(Debug)]
pub struct Examined {
    /// As a mesh asked about calls it.
    pub name: String,
    pub source: Source,
    /// When they end, where they say so; or why there are none.
    pub credentials: Result<Option<Timestamp>, String>,
    /// Its version.
    pub answers: Option<Result<String, Failure>>,
    pub rights: Option<Result<Granted, Failure>>,
    /// Whether it knows Peers.
    pub peers: Option<Result<bool, Failure>>,
}

/// The service account of the operator on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorAccount {
    pub namespace: String,
    pub name: String,
}

impl Looker {
    pub async fn examine(&self, interest: &Interest, operator: &OperatorAccount) -> Examination {
        let (names, namespaces) = match visible_meshes(&self.hub, interest).await {
            Ok((objects, _)) => concerned(&objects.iter().map(Record::read).collect::<Vec<_>>(), interest),
            // What is wrong with them the look tells.
            Err(_) => (BTreeMap::from([(Source::Hub, "the hub".to_owned())]), BTreeSet::new()),
        };
        let visits = names.iter().map(|(source, name)| self.examine_one(source, name, operator, &namespaces));
        let (clusters, look) = join(join_all(visits), self.look(interest)).await;
        Examination { clusters, look }
    }

    async fn examine_one(&self, source: &Source, name: &str, operator: &OperatorAccount, namespaces: &BTreeSet<String>) -> Examined {
        let nothing =
            |credentials| Examined { name: name.to_owned(), source: source.clone(), credentials, answers: None, rights: None, peers: None };
        let connection = match self.connection(source).await {
            Ok(connection) => connection,
            Err((_, why)) => return nothing(Err(why)),
        };
        let (client, examined) = (connection.client, nothing(Ok(connection.ends)));
        let version = client.apiserver_version().await.map(|version| version.git_version).map_err(|error| Failure::of(&error));
        if version.is_err() {
            return Examined { answers: Some(version), ..examined };
        }
        let rights = async {
            match source {
                Source::Hub => granted_on_hub(&client, operator, namespaces).await,
                Source::Secret { .. } => granted(&client, Who::Myself, &rights(&member_rules(), None)).await,
            }
        };
        let (rights, peers) = join(rights, knows_peers(&client)).await;
        Examined { answers: Some(version), rights: Some(rights), peers: Some(peers), ..examined }
    }
}

/// The clusters of the meshes asked about, by the names that they have there,
/// and the namespaces of those meshes.
fn concerned(records: &[Record], interest: &Interest) -> (BTreeMap<Source, String>, BTreeSet<String>) {
    let asked = || records.iter().filter(|record| interest.includes(record.id()));
    let mut names = BTreeMap::from([(Source::Hub, "the hub".to_owned())]);
    names.extend(asked().flat_map(Record::reaches));
    (names, asked().map(|record| record.id().namespace.clone()).collect())
}

/// What the operator's account may. Who may not ask that may be that account.
async fn granted_on_hub(client: &Client, operator: &OperatorAccount, namespaces: &BTreeSet<String>) -> Result<Granted, Failure> {
    let mut needed = rights(&[member_rules(), hub_rules()].concat(), None);
    needed.extend(namespaces.iter().flat_map(|namespace| rights(&namespace_rules(), Some(namespace))));
    let account = Who::Account { namespace: &operator.namespace, name: &operator.name };
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
    match peers.list_metadata(&ListParams::default().limit(1)).await.map_err(|error| Failure::of(&error)) {
        Ok(_) => Ok(true),
        Err(Failure::NotFound(_)) => Ok(false),
        // What may not be listed is there, or the rights tell.
        Err(Failure::Forbidden(_)) => Ok(true),
        Err(failure) => Err(failure),
    }
}
