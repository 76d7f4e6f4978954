//! The demo's steps: a change to the fleet, its expected effect, and the time in between.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep, timeout};

use crate::demo::fleet::Fleet;

/// A step, with its effect once that is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) cause: String,
    pub(crate) effect: Option<String>,
}

impl Line {
    pub(crate) fn of(cause: String, effect: String) -> Line {
        Line {
            cause,
            effect: Some(effect),
        }
    }
}

/// Reason why the steps were not played to the end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// An effect timed out.
    Stuck(String),
    /// The output was closed.
    Unread,
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Ending {
    fn from(wrong: anyhow::Error) -> Ending {
        Ending::Failed(wrong)
    }
}

/// Pauses before and after each step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    before: Duration,
    after: Duration,
}

impl Pace {
    pub(crate) fn human() -> Pace {
        Pace {
            before: Duration::from_millis(800),
            after: Duration::from_millis(2_200),
        }
    }

    /// The pause is needed: a cluster must be down for a while before it is detected.
    pub(crate) fn brisk() -> Pace {
        Pace {
            before: Duration::ZERO,
            after: Duration::from_millis(300),
        }
    }
}

/// Timeout of every step, plus 3 ms per Peer for slow machines.
const PATIENCE: Duration = Duration::from_secs(60);
/// A step has settled when nothing is requested for this long.
const SETTLED: Duration = Duration::from_millis(500);

pub(crate) struct Story<'a> {
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) pace: Pace,
    /// Returns false if the output was closed.
    pub(crate) tell: &'a dyn Fn(&Line) -> Result<bool>,
}

impl std::fmt::Debug for Story<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Story")
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

impl Story<'_> {
    pub(crate) async fn play(&mut self) -> Result<(), Ending> {
        self.scene(self.fleet.one_mesh(), converge).await?;
        self.node_joins(&[]).await?;
        self.token_is_replaced().await?;
        self.node_moves().await?;
        self.nodes_are_renumbered().await?;
        let lost = self.fleet.last();
        self.cluster_dies(&lost).await?;
        let missed = match self
            .fleet
            .members_but(std::slice::from_ref(&lost))
            .is_empty()
        {
            true => None,
            false => Some(self.node_joins(std::slice::from_ref(&lost)).await?),
        };
        self.cluster_returns(&lost, missed.as_deref()).await
    }

    /// Plays the first step only and returns its effect.
    pub(crate) async fn converges(&mut self) -> Result<String, Ending> {
        converge(self.fleet).await
    }

    /// Adds a node to the hub and waits for its Peers on all members except `absent`. Returns its
    /// name.
    async fn node_joins(&mut self, absent: &[String]) -> Result<String, Ending> {
        let (newcomer, others) = (
            self.fleet.next_node(),
            if absent.is_empty() { "" } else { " other" },
        );
        self.scene(
            format!("node {newcomer} is added"),
            async |fleet: &mut Fleet| {
                let (start, before) = (Instant::now(), fleet.counts().peer_writes);
                let node = fleet.add_node()?;
                let mut left = fleet.members_but(absent);
                let took = until(fleet, start, "the new node's Peers", |fleet| {
                    left.retain(|member| fleet.peer(member, &node).is_none());
                    left.is_empty()
                });
                let took = took.await?;
                Ok(format!(
                    "in all{others} clusters after {took}, {}",
                    writes(fleet.counts().peer_writes - before)
                ))
            },
        )
        .await?;
        Ok(newcomer)
    }

    async fn token_is_replaced(&mut self) -> Result<(), Ending> {
        let member = self.fleet.second();
        self.scene(
            format!("{member} gets a new token"),
            async |fleet: &mut Fleet| {
                let start = Instant::now();
                let (former, token) = fleet.renew_token(&member)?;
                let took = until(fleet, start, "the new token to be used", |fleet| {
                    fleet.uses(&token)
                })
                .await?;
                former
                    .iter()
                    .try_for_each(|former| fleet.revoke(&member, former))?;
                Ok(format!("in use after {took}, old token revoked"))
            },
        )
        .await
    }

    /// Writes to every member, which also exercises the new token.
    async fn node_moves(&mut self) -> Result<(), Ending> {
        let node = self.fleet.first_node();
        self.scene(
            format!("{node} gets a new address"),
            async |fleet: &mut Fleet| {
                let (start, before) = (Instant::now(), fleet.counts().unauthorized);
                fleet.move_node(&node)?;
                let mut left = fleet.members_but(&[]);
                let took = until(fleet, start, "the new address in all Peers", |fleet| {
                    left.retain(|member| !fleet.has_moved(member, &node));
                    left.is_empty()
                });
                let took = took.await?;
                Ok(match fleet.counts().unauthorized - before {
                    0 => format!("in all Peers after {took}, no request refused"),
                    refused => format!("in all Peers after {took}, {refused} requests refused"),
                })
            },
        )
        .await
    }

    /// Simulates that Kilo renumbers two nodes. One publishes its new address first, so that both
    /// have the same address for a moment.
    async fn nodes_are_renumbered(&mut self) -> Result<(), Ending> {
        let Some([(first, one), (second, other)]) = self.fleet.two_nodes() else {
            return Ok(());
        };
        self.scene(
            "Kilo renumbers two nodes".to_owned(),
            async |fleet: &mut Fleet| {
                let (start, before) = (Instant::now(), fleet.counts().peers_deleted);
                fleet.publish_address(&first, &other)?;
                let mut left = fleet.members_but(&[]);
                until(fleet, start, "the shared address to be detected", |fleet| {
                    left.retain(|member| fleet.carries(member, &first, &one));
                    left.is_empty()
                })
                .await?;
                fleet.publish_address(&second, &one)?;
                let mut left = fleet.members_but(&[]);
                let took = until(fleet, start, "the new addresses in all Peers", |fleet| {
                    left.retain(|member| {
                        !fleet.carries(member, &first, &other)
                            || !fleet.carries(member, &second, &one)
                    });
                    left.is_empty()
                });
                let took = took.await?;
                Ok(match fleet.counts().peers_deleted - before {
                    0 => format!("in all Peers after {took}, none deleted"),
                    deleted => format!("in all Peers after {took}, {deleted} deleted"),
                })
            },
        )
        .await
    }

    async fn cluster_dies(&mut self, lost: &str) -> Result<(), Ending> {
        self.scene(format!("{lost} goes down"), async |fleet: &mut Fleet| {
            let (start, before) = (Instant::now(), fleet.counts().peers_deleted);
            fleet.set_alive(lost, false)?;
            let took = until(fleet, start, "the status to report it", |fleet| {
                fleet.reachable(lost) == Some(false)
            })
            .await?;
            Ok(match fleet.counts().peers_deleted - before {
                0 => format!("detected after {took}, nothing deleted"),
                deleted => format!("detected after {took}, {deleted} Peers deleted"),
            })
        })
        .await
    }

    async fn cluster_returns(&mut self, lost: &str, missed: Option<&str>) -> Result<(), Ending> {
        self.scene(format!("{lost} comes back"), async |fleet: &mut Fleet| {
            let start = Instant::now();
            fleet.set_alive(lost, true)?;
            let took = until(fleet, start, "the mesh to be ready again", |fleet| {
                let has_all = missed.is_none_or(|node| fleet.peer(lost, node).is_some());
                has_all && fleet.reachable(lost) == Some(true) && fleet.ready().is_ok()
            });
            let with = if missed.is_some() {
                ", missed updates written"
            } else {
                ""
            };
            Ok(format!("Ready after {}{with}", took.await?))
        })
        .await
    }

    /// Reports how many requests an idle mesh causes, for a while or forever.
    pub(crate) async fn rests(&mut self, time: Duration) -> Result<(), Ending> {
        loop {
            let before = self.fleet.counts().requests;
            sleep(SETTLED).await;
            if self.fleet.counts().requests == before {
                break;
            }
        }
        let (start, before) = (Instant::now(), self.fleet.counts());
        loop {
            let left = time.saturating_sub(start.elapsed());
            sleep(left.min(Duration::from_secs(1))).await;
            let now = self.fleet.counts();
            let writes = now.writes - before.writes;
            let reads = (now.requests - before.requests).saturating_sub(writes);
            let effect = format!(
                "for {} s: {reads} reads, {writes} writes except the Lease",
                start.elapsed().as_secs()
            );
            let is_over = start.elapsed() >= time;
            if is_over || time == Duration::MAX {
                self.say(&Line::of("idle".to_owned(), effect))?;
            }
            if is_over {
                return Ok(());
            }
        }
    }

    async fn scene(
        &mut self,
        cause: String,
        play: impl AsyncFnOnce(&mut Fleet) -> Result<String, Ending>,
    ) -> Result<(), Ending> {
        self.say(&Line {
            cause: cause.clone(),
            effect: None,
        })?;
        sleep(self.pace.before).await;
        let effect = play(self.fleet).await?;
        self.say(&Line::of(cause, effect))?;
        sleep(self.pace.after).await;
        Ok(())
    }

    fn say(&self, line: &Line) -> Result<(), Ending> {
        if (self.tell)(line)? {
            Ok(())
        } else {
            Err(Ending::Unread)
        }
    }
}

async fn converge(fleet: &mut Fleet) -> Result<String, Ending> {
    fleet.start_operator()?;
    let start = Instant::now();
    fleet.declare_mesh()?;
    let took = until(fleet, start, "the mesh to be ready", |fleet| {
        fleet.ready().is_ok()
    })
    .await?;
    Ok(format!(
        "Ready after {took}, {} Peers written",
        fleet.counts().peer_writes
    ))
}

/// Waits for an effect and returns the time since `start`, formatted.
async fn until(
    fleet: &Fleet,
    start: Instant,
    what: &str,
    mut is_there: impl FnMut(&Fleet) -> bool,
) -> Result<String, Ending> {
    let timeouts =
        PATIENCE + Duration::from_millis(3 * u64::try_from(fleet.peers()).unwrap_or_default());
    let wait = async {
        while !is_there(fleet) {
            fleet.changed().await;
        }
    };
    if timeout(timeouts, wait).await.is_ok() {
        return Ok(in_words(start.elapsed()));
    }
    let why = match (fleet.operator_ended(), fleet.ready()) {
        (true, _) => "the operator stopped: it lost its Lease".to_owned(),
        (false, Err(why)) => why,
        (false, Ok(())) => "the mesh is ready".to_owned(),
    };
    Err(Ending::Stuck(format!(
        "timed out after {} waiting for {what}: {why}",
        in_words(timeouts)
    )))
}

fn writes(count: u64) -> String {
    if count == 1 {
        "1 write".to_owned()
    } else {
        format!("{count} writes")
    }
}

/// Formats a duration with two or three digits.
fn in_words(time: Duration) -> String {
    match time.as_millis() {
        0..10 => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
        10..1_000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_exact_as_people_want_them() {
        let words = |micros| in_words(Duration::from_micros(micros));
        assert_eq!(
            [850, 7_340, 42_900, 999_900, 1_240_000].map(words),
            ["0.8 ms", "7.3 ms", "42 ms", "999 ms", "1.2 s"]
        );
    }
}
