//! Reads kcp, the management plane and the clusters of all tenants once, with the
//! provider's own engine, and shows one workspace. Read-only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mw_core::names::{ClusterId, Workspace};
use tokio::time::Instant;

use crate::cilium::doctor_reads::{Examination, Examined, selection};
use crate::cilium::engine::{Engine, Provider, engine};
use crate::cilium::kubeconfig_secrets::Lead;
use crate::cilium::member::Member;
use crate::cilium::record::{Object, Record};
use crate::published_status::Interest;
use crate::run::Environment;

/// Reads as a provider of kcp does after a restart.
#[derive(Debug, Clone)]
pub struct ProviderExaminer {
    pub provider: Provider,
    /// Its clients should not be able to write.
    pub environment: Environment,
    /// Timeout for reading everything; what is missing by then is unknown.
    pub deadline: Duration,
}

impl ProviderExaminer {
    /// Examines the requested objects of a workspace. Everything is planned, because
    /// other tenants may use the same clusters, but only the changes in clusters of
    /// these objects are returned.
    pub async fn survey(&self, workspace: &Workspace, interest: &Interest) -> Examination {
        let mut engine = engine(self.provider.clone(), self.environment.clone());
        engine.read_all(Instant::now() + self.deadline).await;
        engine.examination(workspace, interest).await
    }
}

impl Engine {
    /// Reads and verifies everything without writing, at most until `end`.
    async fn read_all(&mut self, end: Instant) {
        self.follow_objects();
        while Instant::now() < end && !self.has_read_all() {
            let wake = self.wake().min(end);
            let first = self.next_event(wake).await;
            self.take_in(first);
            if let Some(plan) = self.turn_without_writes() {
                self.verify(&plan);
            }
        }
    }

    fn has_read_all(&self) -> bool {
        let lacks = |member: &Member| {
            let feeds = &member.link.feeds;
            member.link.live.is_some()
                && feeds.silence().is_none()
                && (feeds.lacks_something() || feeds.lacks(self.state.wants))
        };
        self.state.lists.first_look_ends.is_none()
            && !self.members.values().any(lacks)
            && !self.is_verifying()
    }

    async fn examination(mut self, workspace: &Workspace, interest: &Interest) -> Examination {
        let of_it = |record: &&Record| record.id().workspace == *workspace;
        let objects: Vec<Object> = self
            .records
            .values()
            .filter(of_it)
            .map(|record| record.state.object.clone())
            .collect();
        let chosen = selection(interest, &objects);
        let records = self
            .records
            .values()
            .filter(|record| chosen.contains(record.id()));
        let refs: BTreeSet<(String, String)> = records
            .clone()
            .flat_map(|record| {
                self.refs(record)
                    .into_iter()
                    .map(|name| (record.id().namespace.clone(), name))
            })
            .collect();
        let clusters = join_all(refs.iter().filter_map(|(namespace, name)| {
            let record = records.clone().find(|record| {
                record.id().namespace == *namespace && self.refs(record).contains(name)
            })?;
            Some(self.examined(record, name))
        }))
        .await;
        let reached: BTreeSet<&ClusterId> = clusters
            .iter()
            .filter_map(|cluster| cluster.cluster.as_ref())
            .collect();
        let (mut world, mut plan) = (
            std::mem::take(&mut self.state.world),
            Arc::unwrap_or_clone(self.state.plan.clone()),
        );
        world.clusters.retain(|id, _| reached.contains(id));
        plan.targets.retain(|id, _| reached.contains(id));
        world.bindings.retain(|id, _| chosen.contains(id));
        world.services.retain(|id, _| chosen.contains(id));
        world.intents.retain(|id, _| chosen.contains(id));
        plan.bindings.retain(|id, _| chosen.contains(id));
        plan.services.retain(|id, _| chosen.contains(id));
        plan.intents.retain(|id, _| chosen.contains(id));
        Examination {
            clusters,
            world,
            plan,
        }
    }

    async fn examined(&self, record: &Record, name: &str) -> Examined {
        let lead = self.lead(record.id(), name);
        let secret = match (&lead, &self.state.sources.kcp) {
            (Lead::Missing(_), Some(kcp)) => self
                .managed_secret(name)
                .map(|(secret, _)| (kcp.namespace.clone(), secret)),
            _ => lead.secret(),
        };
        let examined = Examined::new(&record.id().namespace, name, secret);
        let access = lead.access(&self.settings.allowed);
        let cluster = access
            .as_ref()
            .ok()
            .and_then(|(source, _)| self.state.identities.leads.get(&source.id()))
            .cloned();
        let (examined, _) = examined
            .ask(
                &*self.environment.connect,
                access,
                &self.settings.cilium_namespace,
            )
            .await;
        Examined {
            cluster,
            ..examined
        }
    }
}
