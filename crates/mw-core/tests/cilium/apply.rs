//! The API server's role: applies a plan's writes to the world, and answers its
//! dials.

use std::collections::{BTreeMap, BTreeSet};

use mw_core::cilium::facts::CaId;
use mw_core::cilium::facts::{ClusterSeen, Held, MANAGER, Maker, PolicySeen, RemoteUsers, RootCa};
use mw_core::cilium::plan as plans;
use mw_core::cilium::plan::{Plan, PolicyChanges, TargetPlan};
use mw_core::cilium::world::{DialOutcome, Dialled, Evidence, Heartbeat, VerifyDial, World};
use mw_core::names::ClusterId;
use mw_core::seen::Seen;
use mw_core::time::Timestamp;

/// Carries out every write. A server-side apply leaves fields of other managers
/// alone and fails if it would change one; the planner must never request that.
pub(crate) fn apply(plan: &Plan, world: &mut World) {
    let now = world.now;
    for (id, target) in &plan.targets {
        let seen = world
            .clusters
            .get_mut(id)
            .expect("a target that was never seen");
        assert!(seen.silent.is_none(), "{id} does not answer");
        write(id, target, seen, now);
    }
    note_touched(plan, world);
}

fn note_touched(plan: &Plan, world: &mut World) {
    let noted = |touches: &BTreeSet<String>| touches.iter().cloned().collect::<Vec<_>>();
    for (id, of) in &plan.bindings {
        world.bindings.get_mut(id).unwrap().common.touched = noted(&of.outcome.touches);
    }
    for (id, of) in &plan.services {
        world.services.get_mut(id).unwrap().common.touched = noted(&of.outcome.touches);
    }
    for (id, of) in &plan.intents {
        world.intents.get_mut(id).unwrap().common.touched = noted(&of.outcome.touches);
    }
}

fn write(
    id: &ClusterId,
    target: &TargetPlan,
    seen: &mut ClusterSeen,
    now: mw_core::time::Timestamp,
) {
    let TargetPlan {
        identity,
        ca,
        elb,
        users,
        secrets,
        services,
        policies,
    } = target;
    if let Some(write) = identity {
        let config = seen.config.known_mut().unwrap().as_mut().unwrap();
        assert_eq!(config.resource_version, write.resource_version);
        config.set_by_us = Some(now);
        if let Some(name) = &write.name {
            assert!(
                ["", "default"].contains(&config.cluster_name.as_str()),
                "a live name is changed"
            );
            config.cluster_name = name.to_string();
        }
        if let Some(id) = write.id {
            assert!(
                ["", "0"].contains(&config.cluster_id.as_str()),
                "a live id is changed"
            );
            config.cluster_id = id.to_string();
        }
    }
    if let Some(create) = ca {
        let root = &mut seen.certificates.known_mut().unwrap().root;
        assert_eq!(*root, Seen::Known(None), "a CA is overwritten");
        let text = String::from_utf8(create.certificate.expose().to_vec()).unwrap();
        *root = Seen::Known(Some(RootCa {
            ca: CaId(text.trim_end_matches(" root").to_owned()),
            certificate: create.certificate.clone(),
            key: Some(create.key.clone()),
            helm_labels: create.labels.clone(),
            helm_annotations: create.annotations.clone(),
            not_after: Timestamp(100_000_000),
            maker: Maker::Helm,
        }));
    }
    if let Some(write) = elb {
        let service = seen.service.known_mut().unwrap().as_mut().unwrap();
        assert!(service.elb_id.is_none(), "a load balancer is replaced");
        service.elb_id = Some(write.id.clone());
    }
    if let Some(write) = users {
        let users = seen.users.known_mut().unwrap();
        assert_eq!(
            users.is_none(),
            write.on.is_none(),
            "the ConfigMap is created once"
        );
        let found = users.get_or_insert_with(|| RemoteUsers {
            uid: format!("{id}/users"),
            ..RemoteUsers::default()
        });
        let kept = found
            .text
            .lines()
            .filter(|line| !line.contains("# meshwright") && line.trim_start().starts_with("- "));
        kept.for_each(|line| assert!(write.text.contains(line), "{line} of another owner is lost"));
        found.text.clone_from(&write.text);
    }
    for (name, apply) in secrets {
        let secret = seen.secrets.known_mut().unwrap().entry(*name).or_default();
        if secret.uid.is_empty() {
            secret.uid = format!("{id}/{}", name.as_str());
        }
        apply_fields(&mut secret.keys, &apply.data);
        secret.written = Some(now);
    }
    for (name, apply) in services {
        let service = seen.services.known_mut().unwrap().get_mut(name).unwrap();
        assert_eq!(service.uid, *apply.on.uid);
        apply_fields(&mut service.annotations, &apply.annotations);
    }
    write_policies(policies, seen);
}

/// An unforced server-side apply of a map.
fn apply_fields<T: Clone + PartialEq>(
    held: &mut BTreeMap<String, Held<T>>,
    wanted: &BTreeMap<String, T>,
) {
    for (key, value) in wanted {
        let field = held.entry(key.clone()).or_insert_with(|| Held {
            value: value.clone(),
            managers: BTreeSet::new(),
        });
        assert!(
            field.value == *value || field.is_ours_alone(),
            "the apply of {key} conflicts with {:?}",
            field.managers
        );
        field.value = value.clone();
        field.managers.insert(MANAGER.to_owned());
    }
    held.retain(|key, field| {
        if !wanted.contains_key(key) {
            field.managers.remove(MANAGER);
        }
        !field.managers.is_empty()
    });
}

fn write_policies(changes: &PolicyChanges, seen: &mut ClusterSeen) {
    let PolicyChanges {
        create,
        update,
        delete,
    } = changes;
    if create.is_empty() && update.is_empty() && delete.is_empty() {
        return;
    }
    let found = seen.policies.known_mut().unwrap();
    for (key, wanted) in create {
        let plans::WantedPolicy { labels, spec, .. } = wanted.clone();
        let policy = PolicySeen {
            uid: key.name.clone(),
            resource_version: "1".to_owned(),
            deleting: false,
            labels,
            spec,
        };
        assert!(
            found.insert(key.clone(), policy).is_none(),
            "{key:?} is there already"
        );
    }
    for (key, update) in update {
        let policy = found.get_mut(key).unwrap();
        assert_eq!(&*update.on.uid, policy.uid);
        policy.spec = update.after.spec.clone();
        policy.labels.extend(update.after.labels.clone());
    }
    for (key, on) in delete {
        assert_eq!(
            found.remove(key).map(|policy| policy.uid).as_deref(),
            Some(&*on.uid)
        );
    }
}

/// Answers every dial of the plan successfully.
pub(crate) fn answer(plan: &Plan, world: &mut World) {
    for (link, dial) in &plan.dials {
        let heartbeat = Heartbeat::At {
            time: world.now,
            moved: None,
        };
        let outcome = DialOutcome::Read {
            id: dial.cluster_id,
            heartbeat,
        };
        let dialled = Dialled {
            fingerprint: dial.fingerprint.clone(),
            at: world.now,
            outcome,
        };
        let unseen = || Evidence {
            dial: None,
            reader: Seen::Unknown("no metrics".to_owned()),
        };
        world
            .evidence
            .entry(link.clone())
            .or_insert_with(unseen)
            .dial = Some(dialled);
    }
}

/// Repeats until there is nothing to do. Each round is a plan, its writes and
/// its dials.
pub(crate) fn settle(world: &mut World) {
    for _ in 0..12 {
        let plan = mw_core::cilium::plan(world);
        apply(&plan, world);
        if world.options.verify_dial != VerifyDial::Off {
            answer(&plan, world);
        }
        let again = mw_core::cilium::plan(world);
        if again == plan && !plan.has_changes() {
            return;
        }
    }
    panic!(
        "it never settles: {:#?}",
        mw_core::cilium::plan(world).targets
    );
}
