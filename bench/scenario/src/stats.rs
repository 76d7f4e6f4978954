//! Percentiles and spreads.

use std::fmt;

/// Latencies of single changes, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn all<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Sample {
        Sample(
            samples
                .into_iter()
                .flat_map(|sample| sample.0.iter().copied())
                .collect(),
        )
    }

    /// Returns the nearest-rank percentile: the smallest value that `percent` % of all
    /// values do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
    }
}

/// Measurements of operator and floor in one round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) operator: Sample,
    pub(crate) floor: Sample,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} ms, floor {:.2} ms",
            self.operator.percentile(50),
            self.floor.percentile(50)
        )
    }
}

/// Formats the smallest and the largest value: `1.02 to 1.13`.
pub(crate) fn range(values: &[f64]) -> String {
    let (low, high) = values
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    format!("{low:.2} to {high:.2}")
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
