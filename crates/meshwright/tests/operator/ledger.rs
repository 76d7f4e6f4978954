//! Compares the calls of the tested accounts, over all scenarios, with their roles: nothing may be
//! denied, and nothing may be granted that no scenario uses.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use mw_testbed::audit::AuditRecord;
use serde_json::Value;

use crate::access::ACCOUNTS;
use crate::rights::{Account, documents};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    /// Place of the account that made the call.
    pub(crate) place: &'static str,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Scenario in which the call was unexpectedly denied.
    pub(crate) denied_in: Option<String>,
}

static LEDGER: Mutex<BTreeSet<Call>> = Mutex::new(BTreeSet::new());

/// Account that made a call, if it is one of the tested process.
pub(crate) fn account(record: &AuditRecord) -> Option<Account> {
    ACCOUNTS.into_iter().find(|account| account.made(record))
}

/// Records the calls of those accounts.
pub(crate) fn note(records: &[AuditRecord], scenario: &str, denials_are_meant: bool) {
    let mut ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    for record in records {
        let Some(account) = account(record) else {
            continue;
        };
        let denied_in = (record.denied && !denials_are_meant).then(|| scenario.to_owned());
        if record.denied && denied_in.is_none() {
            continue;
        }
        let call = Call {
            place: account.place,
            verb: record.verb.clone(),
            group: record.group.clone(),
            resource: record.resource.clone(),
            namespace: record.namespace.clone(),
            name: record.name.clone(),
            denied_in,
        };
        // An apply that creates the object also needs the right to create.
        if call.verb == "patch" && record.code == 201 {
            ledger.insert(Call {
                verb: "create".into(),
                ..call.clone()
            });
        }
        ledger.insert(call);
    }
}

/// Errors in the shipped roles, after all scenarios.
pub(crate) fn findings() -> Vec<String> {
    let calls = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    judge(
        &calls,
        &ACCOUNTS.map(|account| (account.place, documents(account.roles))),
    )
}

pub(crate) fn judge(calls: &BTreeSet<Call>, roles: &[(&'static str, Vec<Value>)]) -> Vec<String> {
    let denied = calls.iter().filter_map(|call| {
        let scenario = call.denied_in.as_ref()?;
        Some(format!(
            "denied in {scenario}: {} {} {}/{} {}/{}",
            call.place, call.verb, call.group, call.resource, call.namespace, call.name
        ))
    });
    let mut findings: Vec<String> = denied.collect();
    for (place, objects) in roles {
        for role in objects.iter().filter(|object| object["rules"].is_array()) {
            for rule in role["rules"].as_array().into_iter().flatten() {
                findings.extend(unused(calls, place, role, rule));
            }
        }
    }
    findings
}

fn unused(calls: &BTreeSet<Call>, place: &str, role: &Value, rule: &Value) -> Vec<String> {
    let list = |field: &str| -> Vec<String> {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    let namespace = role["metadata"]["namespace"].as_str();
    let names = list("resourceNames");
    let mut unused = Vec::new();
    for (group, resource, verb) in list("apiGroups").iter().flat_map(|group| {
        list("resources").into_iter().flat_map(move |resource| {
            list("verbs")
                .into_iter()
                .map(move |verb| (group.clone(), resource.clone(), verb))
        })
    }) {
        let used = calls.iter().any(|call| {
            (call.place, &call.group, &call.resource, &call.verb)
                == (place, &group, &resource, &verb)
                && call.denied_in.is_none()
                && namespace.is_none_or(|namespace| call.namespace == namespace)
                && (names.is_empty() || names.contains(&call.name))
        });
        if !used {
            unused.push(format!(
                "never used: {place} {} {verb} {group}/{resource} {names:?}",
                role["kind"].as_str().unwrap_or_default()
            ));
        }
    }
    unused
}
