//! Connection matrix of the clusters. If it is too wide, only pairs with pending or held changes
//! are listed.

use std::collections::BTreeMap;

use mw_core::kilo::view::{MeshView, PairState};

use crate::output::layout::{Cell, WIDTH, mean, rows};

const MOST_PAIRS: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Matrix {
    /// In display order.
    pub(crate) names: Vec<String>,
    /// By source and target; None if the state is not recorded.
    pub(crate) pairs: BTreeMap<(String, String), Option<PairState>>,
}

impl Matrix {
    pub(crate) fn of_view(view: &MeshView) -> Matrix {
        let pair = |pair: &mw_core::kilo::view::PairView| {
            (
                (pair.source.to_string(), pair.target.to_string()),
                Some(pair.state.clone()),
            )
        };
        Matrix {
            names: view
                .clusters
                .iter()
                .map(|cluster| cluster.name.to_string())
                .collect(),
            pairs: view.pairs.iter().map(pair).collect(),
        }
    }

    /// Builds a matrix of all pairs of `names`.
    pub(crate) fn of(
        names: Vec<String>,
        state: impl Fn(&str, &str) -> Option<PairState>,
    ) -> Matrix {
        let mut pairs = BTreeMap::new();
        for source in &names {
            for target in names.iter().filter(|target| *target != source) {
                pairs.insert((source.clone(), target.clone()), state(source, target));
            }
        }
        Matrix { names, pairs }
    }

    pub(crate) fn text(&self) -> String {
        let width: usize = self.names.iter().map(|name| name.len().max(8) + 2).sum();
        if width + 20 > WIDTH {
            return self.open_pairs();
        }
        let mut table = vec![vec![Cell::new("from \\ to", mean::faint())]];
        if let Some(head) = table.first_mut() {
            head.extend(
                self.names
                    .iter()
                    .map(|name| Cell::new(name.as_str(), mean::faint())),
            );
        }
        for source in &self.names {
            let cell = |target: &String| {
                let state = self.pairs.get(&(source.clone(), target.clone()));
                state.map_or(Cell::new("·", mean::faint()), |state| cell(state.as_ref()))
            };
            table.push(
                std::iter::once(Cell::plain(source.as_str()))
                    .chain(self.names.iter().map(cell))
                    .collect(),
            );
        }
        rows(&table, 2)
    }

    fn open_pairs(&self) -> String {
        let count =
            |of: Option<PairState>| self.pairs.values().filter(|state| **state == of).count();
        let (ok, unknown, untold) = (
            count(Some(PairState::Applied)),
            count(Some(PairState::Unknown)),
            count(None),
        );
        let untold = if untold == 0 {
            String::new()
        } else {
            format!(", {untold} not recorded")
        };
        let mut text = format!(
            "  {} clusters, {} pairs: {ok} ok, {unknown} unknown{untold}\n",
            self.names.len(),
            self.pairs.len()
        );
        // Unknown clusters are listed with their nodes.
        let is_open = |state: &Option<PairState>| {
            !matches!(state, None | Some(PairState::Applied | PairState::Unknown))
        };
        let open: Vec<_> = self
            .pairs
            .iter()
            .filter(|(_, state)| is_open(state))
            .collect();
        let row = |((source, target), state): &(&(String, String), &Option<PairState>)| {
            vec![
                Cell::plain(format!("{source} to {target}")),
                cell(state.as_ref()),
            ]
        };
        text.push_str(&rows(
            &open.iter().take(MOST_PAIRS).map(row).collect::<Vec<_>>(),
            2,
        ));
        if open.len() > MOST_PAIRS {
            text.push_str(&format!("  … and {} more\n", open.len() - MOST_PAIRS));
        }
        text
    }
}

fn cell(state: Option<&PairState>) -> Cell {
    match state {
        None => Cell::new("?", mean::faint()),
        Some(PairState::Applied) => Cell::new("ok", mean::good()),
        Some(PairState::Pending {
            create,
            update,
            delete,
        }) => {
            let parts = [("+", create), ("~", update), ("-", delete)];
            let shown: Vec<String> = parts
                .iter()
                .filter(|(_, n)| **n > 0)
                .map(|(mark, n)| format!("{mark}{n}"))
                .collect();
            Cell::new(shown.join(" "), mean::changed())
        }
        Some(PairState::Held(count)) => Cell::new(format!("held {count}"), mean::bad()),
        Some(PairState::Unknown) => Cell::new("unknown", mean::faint()),
        Some(PairState::Duplicate) => Cell::new("dup", mean::bad()),
    }
}
