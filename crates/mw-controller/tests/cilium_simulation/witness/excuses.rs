//! Wrong answers that excuse what is otherwise a violation. Each excuse is limited to
//! the server that gave them, and to the kinds that the judged write depends on.

use crate::lies::{Lasts, Telling, Untruth};
use crate::object::{INTENT, Kind, SERVICE};
use crate::witness::Witness;

impl Witness {
    fn has_told(&self, cluster: &str, is: impl Fn(&Telling) -> bool) -> bool {
        let state = self.lock();
        state
            .lied
            .iter()
            .any(|telling| telling.cluster == cluster && is(telling))
    }

    /// Reports whether a server has given any wrong answer.
    pub(super) fn has_lied(&self, cluster: &str) -> bool {
        self.has_told(cluster, |_| true)
    }

    /// Reports whether a server has given a wrong answer about a kind.
    pub(super) fn has_misreported(&self, cluster: &str, kind: &str) -> bool {
        self.has_told(cluster, |telling| telling.kind == kind)
    }

    /// Reports whether a server has shown other objects in place of these kinds. A
    /// list that lacks objects and a single answer never excuse a removal.
    pub(super) fn has_shown_others(&self, cluster: &str, kinds: &[&str]) -> bool {
        self.has_told(cluster, |telling| {
            kinds.contains(&telling.kind) && telling.shows_others()
        })
    }

    /// Reports whether a server has shown another identity or another Cilium name.
    pub(super) fn may_be_mistaken_for_another(&self, cluster: &str) -> bool {
        self.has_shown_others(cluster, &["namespaces", "configmaps"])
    }

    /// Reports whether a server has hidden what an object of this kind writes there.
    pub(super) fn may_have_hidden(&self, cluster: &str, of: Kind) -> bool {
        let kinds: &[&str] = match of {
            SERVICE => &["namespaces", "services"],
            INTENT => &[
                "namespaces",
                "customresourcedefinitions",
                "ciliumnetworkpolicies",
                "ciliumclusterwidenetworkpolicies",
            ],
            _ => &["namespaces", "configmaps", "secrets"],
        };
        kinds.iter().any(|kind| self.has_misreported(cluster, kind))
    }
}

impl Telling {
    fn shows_others(&self) -> bool {
        let shows = matches!(
            self.how,
            Untruth::Uids { .. } | Untruth::Another { .. } | Untruth::Unasked | Untruth::Frozen
        );
        shows && self.lasts != Lasts::Requests(1)
    }
}
