//! Wrong answers that excuse what is otherwise a violation. Each excuse is limited to
//! the server that gave them.

use crate::lies::Telling;
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
}
