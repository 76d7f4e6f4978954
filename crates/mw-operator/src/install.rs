//! What the operator needs on the hub before it can begin: its CRDs, and the
//! hub's identity.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::failure::Failure;

const MANAGER: &str = "meshwright";

/// Applies the CRDs and waits until they are served. Where that is not allowed
/// those that are there are used.
pub async fn apply_crds(client: &Client, crds: &[CustomResourceDefinition], backoff: &mut Backoff) {
    for crd in crds {
        while let Err(failure) = apply(client, crd).await {
            if matches!(failure, Failure::Forbidden(_)) {
                warn!(crd = crd.name_any(), error = %failure, "the CRD was not applied: what is installed is used");
                break;
            }
            warn!(crd = crd.name_any(), error = %failure, "applying the CRD failed");
            sleep(backoff.next(failure.retry_after())).await;
        }
        backoff.reset();
    }
}

async fn apply(client: &Client, crd: &CustomResourceDefinition) -> Result<(), Failure> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.name_any();
    // Ours alone: what an earlier operator or a chart set in it gives way.
    let params = PatchParams::apply(MANAGER).force();
    let mut found = api.patch(&name, &params, &Patch::Apply(crd)).await.map_err(|error| Failure::of(&error))?;
    while !is_served(&found) {
        sleep(Duration::from_millis(50)).await;
        found = api.get(&name).await.map_err(|error| Failure::of(&error))?;
    }
    info!(crd = name, "the CRD is in place");
    Ok(())
}

fn is_served(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Established").any(|condition| condition.status == "True")
}

/// The UID of the Namespace kube-system, by which Peers say whose they are.
pub async fn hub_uid(client: &Client, backoff: &mut Backoff) -> String {
    loop {
        let failure = match read_hub_uid(client).await {
            Ok(uid) => return uid,
            Err(failure) => failure,
        };
        warn!(error = %failure, "the Namespace kube-system of the hub can't be read");
        sleep(backoff.next(failure.retry_after())).await;
    }
}

/// The same, asked for once.
pub async fn read_hub_uid(client: &Client) -> Result<String, Failure> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get("kube-system").await.map_err(|error| Failure::of(&error))?;
    found.metadata.uid.ok_or_else(|| Failure::Unreadable("the Namespace kube-system has no UID".to_owned()))
}
