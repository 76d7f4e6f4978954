//! Changes on one target, formatted like a diff.

use std::collections::BTreeSet;

use mw_core::kilo::peer::{EndpointFacts, Labels, PeerFacts, PeerSpecFacts};
use mw_core::kilo::plan::{Changes, Delete, Held, HeldChange, HeldFor, Update};
use mw_core::names::PeerName;
use mw_core::text::printable;
use owo_colors::Style;

use crate::input::kilo::dumps::Dump;
use crate::output::layout::{WIDTH, mean, styled, wrapped};

/// Longer lists of changes are truncated.
const MOST_CHANGES: usize = 50;
const SHOWN_OF_MANY: usize = 20;

/// One entry per change, in execution order.
pub(crate) fn diff(changes: &Changes, dump: Option<&Dump>) -> String {
    let seen = |name: &PeerName| dump.and_then(|dump| dump.peers.get(name));
    let deletes = changes
        .delete
        .iter()
        .map(|(name, delete)| removed(name, delete));
    let updates = changes
        .update
        .iter()
        .map(|(name, update)| updated(name, update, seen(name)));
    let creates = changes
        .create
        .iter()
        .map(|(name, peer)| created(name, &peer.spec()));
    let held = changes.held.iter().map(|(name, of)| held(name, of));
    let count =
        changes.delete.len() + changes.update.len() + changes.create.len() + changes.held.len();
    let shown = if count > MOST_CHANGES {
        SHOWN_OF_MANY
    } else {
        count
    };
    let mut text: String = deletes
        .chain(updates)
        .chain(creates)
        .chain(held)
        .take(shown)
        .collect();
    if count > shown {
        text.push_str(&format!("    … and {} more (use -o json)\n", count - shown));
    }
    text
}

fn line(mark: &str, text: &str, style: Style) -> String {
    format!("    {}\n", styled(&format!("{mark} {text}"), style))
}

fn peer(name: &PeerName) -> String {
    format!("peer {}", printable(name.as_str(), 253))
}

fn removed(name: &PeerName, delete: &Delete) -> String {
    line(
        "-",
        &format!("{}  ({})", peer(name), delete.cause.words()),
        mean::bad(),
    )
}

fn held(name: &PeerName, held: &Held) -> String {
    let change = match &held.change {
        HeldChange::Create(_) => "create",
        HeldChange::Update(_) => "update",
        HeldChange::Delete(_) => "delete",
    };
    let why = match (held.why, &held.change) {
        (HeldFor::Deletes, HeldChange::Delete(delete)) => delete.cause.words(),
        (HeldFor::Deletes | HeldFor::Replaced, _) => "its cluster looks like a different one",
        (HeldFor::Budget, _) => "its cluster changes too often",
    };
    line(
        "!",
        &format!("{}  ({change} held: {why})", peer(name)),
        mean::changed(),
    )
}

fn created(name: &PeerName, spec: &PeerSpecFacts) -> String {
    let mut text = line("+", &peer(name), mean::good());
    let mut field = |field: &str, value: &str| {
        text.push_str(&format!(
            "        {field:<10}  {}\n",
            wrapped(value, 20, WIDTH)
        ))
    };
    field("publicKey", &spec.public_key);
    field("endpoint", &endpoint(spec.endpoint.as_ref()));
    field("keepalive", &keepalive(spec.keepalive));
    field("allowedIPs", &spec.allowed_ips.join(" "));
    text
}

/// Shows only the fields that differ.
fn updated(name: &PeerName, update: &Update, seen: Option<&PeerFacts>) -> String {
    let title = if update.adopts {
        format!("{}  (adopted: only labels change)", peer(name))
    } else {
        peer(name)
    };
    let mut text = line("~", &title, mean::changed());
    let nothing = PeerFacts::default();
    let PeerFacts {
        spec: before,
        labels,
        ..
    } = seen.unwrap_or(&nothing);
    let after = update.after.spec();
    let mut field = |field: &str, before: &str, after: &str| {
        for (mark, value, style) in [("-", before, mean::bad()), ("+", after, mean::good())] {
            if before != after && !value.is_empty() {
                let value = wrapped(&printable(value, 2000), 22, WIDTH);
                text.push_str(&format!(
                    "        {}\n",
                    styled(&format!("{mark} {field:<10}  {value}"), style)
                ));
            }
        }
    };
    field("publicKey", &before.public_key, &after.public_key);
    field(
        "endpoint",
        &endpoint(before.endpoint.as_ref()),
        &endpoint(after.endpoint.as_ref()),
    );
    field(
        "keepalive",
        &keepalive(before.keepalive),
        &keepalive(after.keepalive),
    );
    let set =
        |spec: &PeerSpecFacts| -> BTreeSet<String> { spec.allowed_ips.iter().cloned().collect() };
    let (old, new) = (set(before), set(&after));
    let only = |these: &PeerSpecFacts, those: &BTreeSet<String>| -> String {
        these
            .allowed_ips
            .iter()
            .filter(|ip| !those.contains(*ip))
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    field("allowedIPs", &only(before, &new), &only(&after, &old));
    for (key, before, after) in labels_changed(labels, update.after.labels()) {
        field(
            "label",
            &before
                .map(|value| format!("{key}={value}"))
                .unwrap_or_default(),
            &format!("{key}={after}"),
        );
    }
    text
}

fn labels_changed<'a>(
    before: &'a Labels,
    after: &'a Labels,
) -> Vec<(&'static str, Option<&'a str>, &'a str)> {
    let old = |key: &str| {
        before
            .entries()
            .find(|(of, _)| *of == key)
            .map(|(_, value)| value)
    };
    after
        .entries()
        .map(|(key, value)| (key, old(key), value))
        .filter(|(_, old, new)| *old != Some(*new))
        .collect()
}

fn endpoint(endpoint: Option<&EndpointFacts>) -> String {
    let Some(EndpointFacts { dns, ip, port }) = endpoint else {
        return "none (roaming)".to_owned();
    };
    match (dns.as_deref().filter(|dns| !dns.is_empty()), ip.as_deref()) {
        (None, Some(ip)) if ip.contains(':') => format!("[{ip}]:{port}"),
        (dns, ip) => format!("{}:{port}", dns.or(ip).unwrap_or_default()),
    }
}

fn keepalive(seconds: i64) -> String {
    if seconds == 0 {
        "none".to_owned()
    } else {
        format!("{seconds} s")
    }
}
