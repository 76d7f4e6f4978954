//! Table of targets and results.

use crate::fleet::NAMES;
use crate::options::Options;
use crate::programs::Resident;
use crate::stats::{Round, Sample, range};

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// Adds a result without a target.
    pub(crate) fn note(&mut self, what: &str, got: &str, spread: &str) {
        self.rows.push([
            what.to_owned(),
            String::new(),
            got.to_owned(),
            spread.to_owned(),
            String::new(),
        ]);
    }

    pub(crate) fn judge(&mut self, what: &str, wanted: &str, got: &str, spread: &str, met: bool) {
        let verdict = if met { "met" } else { "MISSED" };
        self.rows
            .push([what, wanted, got, spread, verdict].map(str::to_owned));
    }

    /// Adds percentiles relative to the same percentiles of the floor, each with its
    /// target, if any.
    pub(crate) fn compare(
        &mut self,
        what: &str,
        name: &str,
        wanted: [(usize, Option<f64>); 2],
        rounds: &[Round],
    ) {
        let operator = Sample::all(rounds.iter().map(|round| &round.operator));
        let floor = Sample::all(rounds.iter().map(|round| &round.floor));
        for (percent, wanted) in wanted {
            let of = |sample: &Sample| sample.percentile(percent);
            let ratios: Vec<f64> = rounds
                .iter()
                .map(|round| of(&round.operator) / of(&round.floor))
                .collect();
            let (ratio, what) = (
                of(&operator) / of(&floor),
                format!("{what}: p{percent} to floor"),
            );
            match wanted {
                Some(most) => self.judge(
                    &what,
                    &format!("≤ {most}"),
                    &format!("{ratio:.2}"),
                    &range(&ratios),
                    ratio <= most,
                ),
                None => self.note(&what, &format!("{ratio:.2}"), &range(&ratios)),
            }
            let each = |sample: fn(&Round) -> &Sample| {
                rounds
                    .iter()
                    .map(|round| of(sample(round)))
                    .collect::<Vec<f64>>()
            };
            self.note(
                &format!("  {name} p{percent}"),
                &format!("{:.2} ms", of(&operator)),
                &range(&each(|round| &round.operator)),
            );
            self.note(
                &format!("  floor p{percent}"),
                &format!("{:.2} ms", of(&floor)),
                &range(&each(|round| &round.floor)),
            );
        }
    }

    pub(crate) fn memory(&mut self, options: &Options, small: &Resident, large: &Resident) {
        let mib = |kib: f64| kib / 1024.0;
        let got = format!("{:.1} MiB", mib(large.now));
        let what = format!("resident memory, {} × {} nodes", NAMES.len(), options.many);
        self.judge(
            &what,
            "≤ 40 MiB",
            &got,
            &format!("at most {:.1}", mib(large.most)),
            mib(large.now) <= 40.0,
        );
        let what = format!("resident memory, {} × {} nodes", NAMES.len(), options.nodes);
        self.note(
            &what,
            &format!("{:.1} MiB", mib(small.now)),
            &format!("at most {:.1}", mib(small.most)),
        );
        let nodes = (NAMES.len() * (options.many - options.nodes)) as f64;
        let each = (large.now - small.now) / nodes;
        let what = format!("  a node and its {} Peers", NAMES.len() - 1);
        self.note(
            &what,
            &format!("{each:.1} KiB"),
            &format!("{:.1} a Peer", each / (NAMES.len() - 1) as f64),
        );
    }

    pub(crate) fn print(mut self) {
        self.rows
            .insert(0, ["", "wanted", "got", "spread", ""].map(str::to_owned));
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..5).map(width).collect();
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}
