//! The operator's metrics.

#[derive(Debug)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Sum over all series of a name with these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\""))
            .collect();
        self.0
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
            .filter(|(series, _)| series.is_empty() || series.starts_with('{'))
            .filter(|(series, _)| wanted.iter().all(|label| series.contains(label)))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    }
}
