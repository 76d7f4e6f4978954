//! Agent of one host: handles one event or timer at a time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use ipnet::IpNet;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::informer::{Event, Informer};
use super::mesh::{Identity, Mesh, Plan};
use super::node::Node;
use super::routes::Table;
use super::{Clock, Granularity, Names};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::http::{Http, MERGE_PATCH, runtime};
use crate::net::lan::DEVICE;
use crate::net::{Host, Links, WireGuard};

const NODES: &str = "/api/v1/nodes";
const PEERS: &str = "/apis/kilo.squat.ai/v1alpha1/peers";
const CHECK_IN: Duration = Duration::from_secs(30);
const RESYNC: Duration = Duration::from_secs(30);
const TELL_AGAIN: Duration = Duration::from_secs(300);

/// Start parameters of an agent.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// Token of a user with the permissions of Kilo's role.
    pub token: String,
    pub granularity: Granularity,
    /// Range of WireGuard addresses, Kilo's `--subnet`.
    pub range: IpNet,
    pub clock: Clock,
    pub names: Names,
    /// Age of its timers at the start, in the agents' time. Without it, agents that a
    /// test starts together would also check in together.
    pub running_for: Duration,
}

/// A running agent. Dropping it kills it without cleaning up.
#[derive(Debug)]
pub struct Agent {
    _tasks: JoinSet<()>,
    worker: AbortHandle,
    stop: oneshot::Sender<()>,
    /// Closed when the worker ends.
    ended: oneshot::Receiver<()>,
    cut_off: watch::Sender<bool>,
}

impl Agent {
    pub fn start(cluster: &Cluster, host: &Host, spec: &AgentSpec) -> Result<Self> {
        let runtime = runtime()?.handle();
        let http = cluster.http.with_token(&spec.token);
        let mut tasks = JoinSet::new();
        let (cut_off, is_cut_off) = watch::channel(false);
        let mut follow = |collection: &'static str| {
            // The smallest possible capacity: an event waits until the previous one is
            // handled.
            let (events, receiver) = channel(1);
            let (http, resync, cut_off) = (
                http.clone(),
                spec.clock.real(TELL_AGAIN),
                is_cut_off.clone(),
            );
            let informer = Informer {
                http,
                collection,
                events,
                resync,
                cut_off,
            };
            tasks.spawn_on(informer.run(), runtime);
            receiver
        };
        let (nodes, peers) = (follow(NODES), follow(PEERS));
        let me = Identity {
            hostname: host.name.clone(),
            key: host.device.key(),
            port: host.device.port(),
            external: host
                .external
                .map_or(IpAddr::from(host.internal.addr()), IpAddr::from),
            internal: host.internal.into(),
            granularity: spec.granularity,
            range: spec.range,
        };
        let worker = Worker {
            http,
            links: host.links.clone(),
            device: host.device.clone(),
            clock: spec.clock,
            running_for: spec.running_for,
            names: spec.names.clone(),
            mesh: Mesh::new(me.clone()),
            table: Table::default(),
            node: format!("{NODES}/{}", me.hostname),
        };
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let work = async move {
            worker.run(nodes, peers, stopped).await;
            drop(end);
        };
        let worker = tasks.spawn_on(work, runtime);
        Ok(Self {
            _tasks: tasks,
            worker,
            stop,
            ended,
            cut_off,
        })
    }

    /// Stops the agent like SIGTERM. Returns after it has removed its routes and
    /// annotations.
    pub async fn stop(self) {
        // An error means that it has already ended.
        let _ = self.stop.send(());
        let _ = self.ended.await;
    }

    /// Reports whether it ended by itself.
    pub fn has_ended(&self) -> bool {
        self.worker.is_finished()
    }

    /// Cuts the agent off from events, or reconnects it. The server then no longer has
    /// the events in between, and the agent lists again.
    pub fn cut_off(&self, cut_off: bool) {
        self.cut_off.send_replace(cut_off);
    }

    /// Kills the agent like SIGKILL.
    pub fn kill(self) {
        drop(self);
    }
}

struct Worker {
    http: Http,
    links: Links,
    device: Arc<WireGuard>,
    clock: Clock,
    running_for: Duration,
    names: Names,
    mesh: Mesh,
    table: Table,
    node: String,
}

impl Worker {
    async fn run(
        mut self,
        mut nodes: Receiver<Event>,
        mut peers: Receiver<Event>,
        mut stop: oneshot::Receiver<()>,
    ) {
        let (mut check_in, mut resync) = (self.every(CHECK_IN), self.every(RESYNC));
        loop {
            let ended = tokio::select! {
                biased;
                _ = &mut stop => return self.clean_up().await,
                Some(event) = nodes.recv() => self.node_event(event).await,
                Some(event) = peers.recv() => self.peer_event(event).await,
                _ = check_in.tick() => self.check_in().await,
                _ = resync.tick() => self.apply().await,
            };
            // Kilo logs all other errors and continues.
            if let Err(Error::Panicked(_)) = ended {
                return;
            }
        }
    }

    fn every(&self, period: Duration) -> Interval {
        let first = self.clock.real(period.saturating_sub(self.running_for));
        let period = self.clock.real(period);
        let mut interval = interval_at(Instant::now() + first, period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    }

    async fn node_event(&mut self, event: Event) -> Result<()> {
        let now = self.clock.unix_seconds();
        match self.mesh.own_in(&event) {
            Some(own) => self.own_event(own, now).await,
            None if self.mesh.node_event(&event, now) => self.apply().await,
            None => Ok(()),
        }
    }

    /// Updates the annotations of the own node if they are wrong. The agent uses the node
    /// only after they were written.
    async fn own_event(&mut self, found: Node, now: u64) -> Result<()> {
        let own = self.mesh.describe(&found, now);
        if !found.equals(&own, now) {
            self.write(&own).await?;
        }
        if self.mesh.adopt(own, now) {
            self.apply().await
        } else {
            Ok(())
        }
    }

    async fn peer_event(&mut self, event: Event) -> Result<()> {
        if self.mesh.peer_event(&event) {
            self.apply().await
        } else {
            Ok(())
        }
    }

    async fn check_in(&mut self) -> Result<()> {
        let now = self.clock.unix_seconds();
        let Some(own) = self.mesh.checked_in(now) else {
            return Ok(());
        };
        self.write(&own).await?;
        self.mesh.was_seen(now);
        Ok(())
    }

    async fn write(&self, own: &Node) -> Result<()> {
        if !own.has_annotations {
            return Err(Error::Panicked("assignment to entry in nil map".into()));
        }
        self.http
            .expect(
                Method::PATCH,
                &self.node,
                MERGE_PATCH,
                Some(&own.annotations()),
            )
            .await
            .map(drop)
    }

    async fn apply(&mut self) -> Result<()> {
        let planned = self
            .mesh
            .plan(&self.device.peers(), &self.names, self.clock.unix_seconds());
        let plan = planned.map_err(|reason| Error::network("resolving endpoints", reason))?;
        let Some(plan) = plan else { return Ok(()) };
        if plan.is_leader {
            self.lead(&plan).await?;
        } else {
            self.device.set_up(false);
            self.links.down(DEVICE).await?;
        }
        self.table.set(&self.links, &plan.routes).await
    }

    async fn lead(&self, plan: &Plan) -> Result<()> {
        self.links.set_address(DEVICE, Some(plan.address)).await?;
        if plan.differs.is_some() {
            self.device.configure(&plan.peers);
        }
        self.links.up(DEVICE).await?;
        self.device.set_up(true);
        Ok(())
    }

    /// Removes the routes, then the annotations. The device is kept, with its sessions.
    async fn clean_up(mut self) {
        let _ = self.table.clear(&self.links).await;
        let _ = self
            .http
            .expect(
                Method::PATCH,
                &self.node,
                MERGE_PATCH,
                Some(&Node::nothing()),
            )
            .await;
    }
}
