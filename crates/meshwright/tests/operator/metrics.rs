//! What the operator says about itself at /metrics.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) async fn scrape(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Self(answer)
    }

    /// The sum over all series of a name that carry these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        self.0
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
            .filter(|(series, _)| series.is_empty() || series.starts_with('{'))
            .filter(|(series, _)| wanted.iter().all(|label| series.contains(label)))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    }

    pub(crate) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }
}
