//! A hub that returns wrong data: objects that it hides lose nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use mw_testbed::proxy::{Effect, Fault, Match, Verb, lies};
use serde_json::{Value, json};

use crate::ground::{
    BINDINGS, CONNECTIONS, Ground, INTENTS, Kind, POLICIES, SERVICES, SITES, SYSTEM,
};
use crate::neighbours::intent;
use crate::trials::scenarios;
use crate::wait::until;

scenarios![an_empty_list_of_objects_deletes_nothing];

/// Long enough for a wrong delete to happen.
pub(crate) const WINDOW: Duration = Duration::from_secs(4);

/// All lists and all searches by name are empty; also at a start, when the provider knows no object of
/// that kind.
async fn an_empty_list_of_objects_deletes_nothing() {
    let (mut ground, _) = Ground::alike().await;
    ground.interpose();
    for site in SITES {
        ground.open_shop(site, "cart", Value::Null).await;
    }
    let mut provider = ground.provider(&[]).await;
    ground.home().bind("mesh", &SITES, &json!({})).await;
    let selector = json!({ "namespace": "shop", "name": "cart" });
    ground
        .home()
        .declare(
            SERVICES,
            "cart",
            &json!({ "meshRef": { "name": "mesh" }, "selector": selector }),
        )
        .await;
    ground
        .home()
        .declare(INTENTS, "cart", &intent("Namespaced"))
        .await;
    ground.home().connected("mesh").await;
    ground.home().phase(SERVICES, "cart", "Exported").await;
    ground.home().phase(INTENTS, "cart", "Applied").await;
    let before = written(&ground).await;
    for kind in [BINDINGS, SERVICES, INTENTS] {
        ground.hub_proxy().add(Fault::new(
            Match::verb(Verb::List).resource(kind.0),
            lies::empty_list(),
        ));
        relist(&ground, kind).await;
        tokio::time::sleep(WINDOW).await;
        assert_eq!(written(&ground).await, before, "{} are hidden", kind.0);
        provider.terminate().await;
        ground.hub_proxy().forget_counts();
        provider = ground.provider(&[]).await;
        listed(&ground, kind, 2).await;
        tokio::time::sleep(WINDOW).await;
        assert_eq!(
            written(&ground).await,
            before,
            "{} are hidden from the start",
            kind.0
        );
        ground.hub_proxy().clear();
        relist(&ground, kind).await;
    }
    ground.home().connected("mesh").await;
    ground.mesh(&SITES).await;
    ground.home().remove(SERVICES, "cart").await;
    ground.home().remove(INTENTS, "cart").await;
    ground.home().remove(BINDINGS, "mesh").await;
    ground.finish(provider).await;
}

/// Waits until the hub was asked for this many lists.
async fn listed(ground: &Ground, kind: Kind, times: u64) {
    until(format!("lists of {}", kind.0), || async {
        let count = ground
            .hub_proxy()
            .count(&Match::verb(Verb::List).resource(kind.0));
        if count >= times {
            Ok(())
        } else {
            Err(format!("{count} of {times}"))
        }
    })
    .await;
}

/// Forces a relist of a kind: its watch ends and can't be resumed.
async fn relist(ground: &Ground, kind: Kind) {
    let proxy = ground.hub_proxy();
    proxy.forget_counts();
    proxy.add(
        Fault::new(
            Match::verb(Verb::Watch).resource(kind.0),
            Effect::answer(410),
        )
        .times(1),
    );
    proxy.cut_watches(Match::all().resource(kind.0));
    listed(ground, kind, 1).await;
}

/// Contents of everything that the provider wrote.
pub(crate) async fn written(ground: &Ground) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for site in SITES {
        for secret in CONNECTIONS {
            all.insert(
                format!("{secret} of {site}"),
                json!(ground.keys(site, secret).await),
            );
        }
        let users = ground
            .cluster(site)
            .get(&format!("{SYSTEM}/configmaps/clustermesh-remote-users"))
            .await
            .unwrap();
        all.insert(
            format!("users of {site}"),
            users.unwrap_or_default()["data"].clone(),
        );
        for service in ground
            .cluster(site)
            .list("/api/v1/namespaces/shop/services")
            .await
            .unwrap()
        {
            all.insert(
                format!("{} of {site}", service["metadata"]["name"]),
                service["metadata"]["annotations"].clone(),
            );
        }
        for policy in ground.cluster(site).list(POLICIES).await.unwrap() {
            all.insert(
                format!("{} of {site}", policy["metadata"]["name"]),
                policy["metadata"]["uid"].clone(),
            );
        }
    }
    all
}
