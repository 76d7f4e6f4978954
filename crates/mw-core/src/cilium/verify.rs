//! Evaluates the evidence for a link: whether its keys may be written, and
//! whether it works.

use crate::cilium::finding::{Finding, Step};
use crate::cilium::plan::Dial;
use crate::cilium::world::{
    DialFailure, DialOutcome, Dialled, Evidence, Heartbeat, VerifyDial, World,
};
use crate::problem::Reason;
use crate::seen::Seen;
use crate::time::Timestamp;

/// A heartbeat is written every minute; an older one is stale.
const HEARTBEAT_SECONDS: i64 = 120;
/// Time after a start during which the heartbeat may be missing.
const HEARTBEAT_ABSENT_SECONDS: i64 = 90;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Evident {
    Verified(Timestamp),
    /// The keys are written, but the link can't be verified.
    Unverifiable,
    /// The keys are written, and the dial is not answered yet.
    Awaited,
    Not,
}

/// The answer to exactly this dial.
fn answer<'a>(dial: &Dial, evidence: Option<&'a Evidence>) -> Option<&'a Dialled> {
    evidence?
        .dial
        .as_ref()
        .filter(|dialled| dialled.fingerprint == dial.fingerprint)
}

/// Checks whether the keys of a dial may be written. Returns the reason if not,
/// or `None` while the answer is outstanding.
pub(super) fn may_write(
    dial: &Dial,
    evidence: Option<&Evidence>,
    mode: VerifyDial,
) -> Result<(), Option<Finding>> {
    if mode == VerifyDial::Off {
        return Ok(());
    }
    match answer(dial, evidence).map(|dialled| &dialled.outcome) {
        None => Err(None),
        Some(DialOutcome::Read { .. }) => Ok(()),
        Some(DialOutcome::Failed { kind, .. })
            if kind.is_unreachable() && mode == VerifyDial::Warn =>
        {
            Ok(())
        }
        Some(DialOutcome::Failed { kind, text }) => Err(Some(failed(*kind, text))),
    }
}

fn failed(kind: DialFailure, text: &str) -> Finding {
    let (reason, name) = match kind {
        DialFailure::Unreachable => (Reason::DialUnreachable, "Unreachable"),
        DialFailure::Address => (Reason::DialAddress, "Address"),
        DialFailure::Dns => (Reason::DialDNS, "DNS"),
        DialFailure::Tcp => (Reason::DialTCP, "TCP"),
        DialFailure::Tls => (Reason::DialTLS, "TLS"),
        DialFailure::Certificate => (Reason::DialCertificate, "Certificate"),
        DialFailure::Permission => (Reason::DialPermission, "Permission"),
        DialFailure::Name => (Reason::DialName, "Name"),
    };
    let text = format!("dial failed: {name}: {text}");
    if kind.is_unreachable() {
        Finding::waiting(Step::Keys, reason, text)
    } else {
        Finding::permanent(Step::Keys, reason, text)
    }
}

/// The state of a link. `in_place` is the dial of the keys in the reader's
/// Secrets if they are the wanted ones; `has_key` is true if there is any key
/// for that remote. The reader's own view takes precedence: it concerns the
/// keys it has, with any field manager.
pub(super) fn judge(
    in_place: Option<&Dial>,
    has_key: bool,
    evidence: Option<&Evidence>,
    world: &World,
) -> (Evident, Vec<Finding>) {
    let view = evidence.map(|evidence| &evidence.reader);
    if let (true, Some(Seen::Known(view))) = (has_key, view) {
        if view.ready {
            return (Evident::Verified(view.at), Vec::new());
        }
        let dialled = in_place
            .and_then(|dial| answer(dial, evidence))
            .map(|dialled| &dialled.outcome);
        let why = match dialled {
            Some(DialOutcome::Failed { kind, text }) => Some(failed(*kind, text)),
            _ => None,
        };
        let not_ready = not_verified("the reader does not report the remote as ready");
        return (Evident::Not, [not_ready].into_iter().chain(why).collect());
    }
    let Some(dial) = in_place else {
        return (Evident::Not, Vec::new());
    };
    match answer(dial, evidence) {
        None if world.options.verify_dial == VerifyDial::Off => (
            Evident::Unverifiable,
            vec![not_verifiable("dialling is off")],
        ),
        None => (Evident::Awaited, Vec::new()),
        Some(dialled) => by_dial(dial, dialled, view.and_then(Seen::why_unknown)),
    }
}

fn by_dial(dial: &Dial, dialled: &Dialled, unasked: Option<&str>) -> (Evident, Vec<Finding>) {
    match &dialled.outcome {
        DialOutcome::Failed { kind, text } if kind.is_unreachable() => {
            let unasked = unasked
                .map(|why| format!("; the reader can't be queried: {why}"))
                .unwrap_or_default();
            (
                Evident::Unverifiable,
                vec![not_verifiable(&format!(
                    "the provider can't reach the remote: {text}{unasked}"
                ))],
            )
        }
        DialOutcome::Failed { kind, text } => (Evident::Not, vec![failed(*kind, text)]),
        DialOutcome::Read { id, .. } if *id != dial.cluster_id => {
            let text = format!(
                "its clustermesh-apiserver reports cluster-id {id}, its cilium-config {}",
                dial.cluster_id
            );
            let finding = Finding::waiting(Step::Verify, Reason::ClusterIDMismatch, text);
            (
                Evident::Not,
                vec![finding.hint(
                    "restart clustermesh-apiserver, cilium-operator and the agents of the remote",
                )],
            )
        }
        DialOutcome::Read { heartbeat, .. } if is_fresh(*heartbeat, dialled.at) => {
            (Evident::Verified(dialled.at), Vec::new())
        }
        DialOutcome::Read { .. } => (
            Evident::Not,
            vec![not_verified("the remote's heartbeat is stale")],
        ),
    }
}

fn is_fresh(heartbeat: Heartbeat, at: Timestamp) -> bool {
    let ago = |time: Timestamp| at.0.saturating_sub(time.0);
    match heartbeat {
        Heartbeat::At { time, moved } => {
            moved.is_some_and(|moved| ago(moved) <= HEARTBEAT_SECONDS)
                || ago(time) <= HEARTBEAT_SECONDS
        }
        Heartbeat::Absent { since } => ago(since) <= HEARTBEAT_ABSENT_SECONDS,
    }
}

fn not_verified(text: &str) -> Finding {
    Finding::waiting(Step::Verify, Reason::NotVerified, text)
}

fn not_verifiable(why: &str) -> Finding {
    let text = format!("the keys are written, but the link can't be verified: {why}");
    let hint = "to verify it, make the remote's address reachable from the provider, or expose KVStoreMesh's metrics port in the reader";
    Finding::waiting(Step::Verify, Reason::NotVerifiable, text).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_fresh_by_its_text_by_moving_or_shortly_after_a_start() {
        let at = |time: i64, moved: Option<i64>| Heartbeat::At {
            time: Timestamp(time),
            moved: moved.map(Timestamp),
        };
        let absent = |since: i64| Heartbeat::Absent {
            since: Timestamp(since),
        };
        for (fresh, heartbeat) in [
            (true, at(880, None)),
            (false, at(879, None)),
            (true, at(5, Some(880))),
            (false, at(5, Some(879))),
            (true, at(5000, None)),
            (true, absent(910)),
            (false, absent(909)),
        ] {
            assert_eq!(is_fresh(heartbeat, Timestamp(1000)), fresh, "{heartbeat:?}");
        }
    }
}
