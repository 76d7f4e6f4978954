//! Prerequisites on the hub: the CRDs, and the hub's identity.

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

/// Applies the CRDs and waits until they are served. If that is forbidden, the
/// installed ones are used.
pub async fn apply_crds(client: &Client, crds: &[CustomResourceDefinition], backoff: &mut Backoff) {
    for crd in crds {
        while let Err(failure) = apply(client, crd).await {
            if matches!(failure, Failure::Forbidden(_)) {
                warn!(crd = crd.name_any(), error = %failure, "not allowed to apply the CRD; using the installed one");
                break;
            }
            warn!(crd = crd.name_any(), error = %failure, "failed to apply the CRD");
            sleep(backoff.next(failure.retry_after())).await;
        }
        backoff.reset();
    }
}

async fn apply(client: &Client, crd: &CustomResourceDefinition) -> Result<(), Failure> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.name_any();
    // Forced: no other field manager may keep fields of our CRDs.
    let params = PatchParams::apply(MANAGER).force();
    let mut found = api
        .patch(&name, &params, &Patch::Apply(crd))
        .await
        .map_err(|error| Failure::of(&error))?;
    while !is_served(&found) {
        sleep(Duration::from_millis(50)).await;
        found = api.get(&name).await.map_err(|error| Failure::of(&error))?;
    }
    info!(crd = name, "CRD is up to date");
    Ok(())
}

fn is_served(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == "Established")
        .any(|condition| condition.status == "True")
}

/// Returns the UID of Namespace kube-system, which marks the Peers of this hub. Retries until it can be read.
pub async fn hub_uid(client: &Client, backoff: &mut Backoff) -> String {
    loop {
        let failure = match read_hub_uid(client).await {
            Ok(uid) => return uid,
            Err(failure) => failure,
        };
        warn!(error = %failure, "failed to read Namespace kube-system on the hub");
        sleep(backoff.next(failure.retry_after())).await;
    }
}

/// Same as [`hub_uid`], without retries.
pub async fn read_hub_uid(client: &Client) -> Result<String, Failure> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api
        .get("kube-system")
        .await
        .map_err(|error| Failure::of(&error))?;
    found
        .metadata
        .uid
        .ok_or_else(|| Failure::Unreadable("Namespace kube-system has no UID".to_owned()))
}
