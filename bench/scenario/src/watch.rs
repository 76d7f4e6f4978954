//! Observation of objects, the same for operator and floor: a watch on every cluster,
//! and the time at which each event was read.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fleet::Fleet;

const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) struct Event {
    pub(crate) cluster: usize,
    pub(crate) at: Instant,
    pub(crate) line: Vec<u8>,
}

impl Event {
    pub(crate) fn contains(&self, text: &str) -> bool {
        self.line
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    }

    pub(crate) fn is(&self, kind: &str) -> bool {
        self.line
            .starts_with(format!("{{\"type\":\"{kind}\"").as_bytes())
    }
}

pub(crate) struct Watches {
    events: UnboundedReceiver<Event>,
    _tasks: JoinSet<()>,
}

impl Watches {
    /// Opens a watch on every cluster, starting now.
    pub(crate) async fn open(fleet: &Fleet, collection: &str) -> Self {
        let (sender, events) = unbounded_channel();
        let mut tasks = JoinSet::new();
        for (cluster, server) in fleet.admins.iter().enumerate() {
            let mut lines = server
                .watch(&fleet.watch_path(cluster, collection).await)
                .await
                .unwrap();
            let sender = sender.clone();
            tasks.spawn(async move {
                loop {
                    let line = lines.next().await.unwrap();
                    let event = Event {
                        cluster,
                        at: Instant::now(),
                        line,
                    };
                    if sender.send(event).is_err() {
                        return;
                    }
                }
            });
        }
        Self {
            events,
            _tasks: tasks,
        }
    }

    pub(crate) async fn next(&mut self) -> Event {
        let event = timeout(DEADLINE, self.events.recv()).await;
        event
            .expect("nothing changed for two minutes")
            .expect("a watch ended")
    }

    /// Discards pending events.
    pub(crate) fn skip(&mut self) {
        while self.events.try_recv().is_ok() {}
    }
}
