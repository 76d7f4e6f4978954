//! Checks that a hostile tenant learns nothing about others.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::lies::{Untruth, is_hostile};
use crate::object::text;
use crate::witness::Witness;

impl Witness {
    /// Checks that the status of a hostile tenant's object names no namespace, no
    /// cluster and no address of others.
    pub(super) fn check_silence(&self, kind: &str, object: &Value) {
        let namespace = text(&object["metadata"]["namespace"]);
        if !is_hostile(namespace) {
            return;
        }
        let said = object["status"].to_string();
        let others = self.holdings.keys().filter(|other| !is_hostile(other));
        let mut secrets: Vec<String> = others
            .filter(|other| said.contains(&format!("{other}/")))
            .cloned()
            .collect();
        let repeated = self.repeated_by(namespace);
        let is_foreign =
            |site: &String| !self.holdings[namespace].contains(site) && !repeated.contains(site);
        let named = self.named_by(namespace);
        let words = words(&said, |letter| letter.is_ascii_alphanumeric());
        let sites = self.holdings.values().flatten();
        secrets.extend(
            sites
                .filter(|site| is_foreign(site) && !named.contains(*site))
                .filter(|site| words.contains(site.as_str()))
                .cloned(),
        );
        let numbers = self::words(&said, |letter| letter.is_ascii_digit() || letter == '.');
        let state = self.lock();
        let addresses = state
            .addresses
            .iter()
            .filter(|(address, site)| is_foreign(site) && numbers.contains(address.as_str()));
        secrets.extend(addresses.map(|(address, _)| address.clone()));
        drop(state);
        if let Some(secret) = secrets.first() {
            self.accuse(&format!(
                "says-nothing: the status of a hostile {kind} speaks of {secret}: {said}"
            ));
        }
    }

    /// Clusters that a tenant names in its own Secrets.
    fn named_by(&self, namespace: &str) -> BTreeSet<String> {
        let state = self.lock();
        let led = state.led.iter().filter(|((of, _), _)| of == namespace);
        led.map(|(_, site)| site.clone()).collect()
    }

    /// Clusters whose state a tenant's own clusters show as theirs.
    fn repeated_by(&self, namespace: &str) -> BTreeSet<String> {
        let own = &self.holdings[namespace];
        let state = self.lock();
        let lies = state.lied.iter().filter(|lie| own.contains(&lie.cluster));
        let shown = lies.filter_map(|telling| match &telling.how {
            Untruth::Another { of } => Some(of.clone()),
            _ => None,
        });
        shown.collect()
    }
}

/// Returns the parts of a text that consist of these characters.
fn words(text: &str, is: impl Fn(char) -> bool) -> BTreeSet<&str> {
    text.split(|letter| !is(letter))
        .map(|word| word.trim_matches('.'))
        .collect()
}
