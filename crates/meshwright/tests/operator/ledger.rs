//! What the operator's accounts asked the API servers for, over all scenarios,
//! held against the roles they have: nothing may be denied, and nothing may be
//! granted that no scenario uses.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use mw_testbed::audit::AuditRecord;
use serde_json::Value;

use crate::access::{HUB_ACCOUNT, HUB_ROLES, REMOTE_ACCOUNT, REMOTE_NAMESPACE, REMOTE_ROLES, documents};
use mw_sim::kilo::NAMESPACE;

/// The account of a call, and with it the file that grants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Account {
    Hub,
    Remote,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) account: Account,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The scenario in which it was denied without being meant to be.
    pub(crate) denied_in: Option<String>,
}

static LEDGER: Mutex<BTreeSet<Call>> = Mutex::new(BTreeSet::new());

/// Who made a call, if it was the operator.
pub(crate) fn account(record: &AuditRecord) -> Option<Account> {
    let remote = format!("system:serviceaccount:{REMOTE_NAMESPACE}:{REMOTE_ACCOUNT}");
    if record.user == remote {
        return Some(Account::Remote);
    }
    record.user.starts_with(&format!("system:serviceaccount:{NAMESPACE}:{HUB_ACCOUNT}")).then_some(Account::Hub)
}

/// Notes the operator's calls among some records.
pub(crate) fn note(records: &[AuditRecord], scenario: &str, denials_are_meant: bool) {
    let mut ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    for record in records {
        let Some(account) = account(record) else { continue };
        let denied_in = (record.denied && !denials_are_meant).then(|| scenario.to_owned());
        if record.denied && denied_in.is_none() {
            continue;
        }
        let call = Call {
            account,
            verb: record.verb.clone(),
            group: record.group.clone(),
            resource: record.resource.clone(),
            namespace: record.namespace.clone(),
            // Peers are many, and no role names one.
            name: if record.resource == "peers" { String::new() } else { record.name.clone() },
            denied_in,
        };
        // An apply that makes the object needs the right to create as well.
        if call.verb == "patch" && record.code == 201 {
            ledger.insert(Call { verb: "create".into(), ..call.clone() });
        }
        ledger.insert(call);
    }
}

/// What is wrong with the shipped roles, after everything.
pub(crate) fn findings() -> Vec<String> {
    let calls = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    judge(&calls, &documents(HUB_ROLES), &documents(REMOTE_ROLES))
}

pub(crate) fn judge(calls: &BTreeSet<Call>, hub: &[Value], remote: &[Value]) -> Vec<String> {
    let denied = calls.iter().filter_map(|call| {
        let scenario = call.denied_in.as_ref()?;
        Some(format!(
            "denied in {scenario}: {:?} {} {}/{} {}/{}",
            call.account, call.verb, call.group, call.resource, call.namespace, call.name
        ))
    });
    let mut findings: Vec<String> = denied.collect();
    for (account, objects) in [(Account::Hub, hub), (Account::Remote, remote)] {
        for role in objects.iter().filter(|object| object["rules"].is_array()) {
            for rule in role["rules"].as_array().into_iter().flatten() {
                findings.extend(unused(calls, account, role, rule));
            }
        }
    }
    findings
}

fn unused(calls: &BTreeSet<Call>, account: Account, role: &Value, rule: &Value) -> Vec<String> {
    let list = |field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let namespace = role["metadata"]["namespace"].as_str();
    let names = list("resourceNames");
    let mut unused = Vec::new();
    for (group, resource, verb) in list("apiGroups").iter().flat_map(|group| {
        list("resources")
            .into_iter()
            .flat_map(move |resource| list("verbs").into_iter().map(move |verb| (group.clone(), resource.clone(), verb)))
    }) {
        let used = calls.iter().any(|call| {
            (call.account, &call.group, &call.resource, &call.verb) == (account, &group, &resource, &verb)
                && call.denied_in.is_none()
                && namespace.is_none_or(|namespace| call.namespace == namespace)
                && (names.is_empty() || names.contains(&call.name))
        });
        if !used {
            unused
                .push(format!("never used: {account:?} {} {verb} {group}/{resource} {names:?}", role["kind"].as_str().unwrap_or_default()));
        }
    }
    unused
}
