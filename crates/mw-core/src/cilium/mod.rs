//! The Cilium backend: computes the wanted state of every cluster from
//! ClusterMeshBindings, GlobalServices and ConnectivityIntents and the observed
//! state of the clusters.
//!
//! # Contract
//!
//! `plan(&World) -> Plan` is pure: the same world gives the same plan, whatever
//! was planned before. The caller keeps the world, carries out the plan and
//! feeds the results back into the world.
//!
//! **Input** (`World`):
//! - `bindings`, `services`, `intents`: the objects of all tenants, specs as
//!   raw text. `Common::workspace` keeps equal names of two tenants apart; on a
//!   hub it is the hub's UID. `Common::refs` holds the `Resolution` of each ref
//!   that the object names or has recorded. A `ClusterId` identifies the
//!   credentials of one owner for a cluster, so no object is ever planned with
//!   another owner's credentials. Two refs of one owner lead to the same cluster
//!   if and only if their `ClusterId`s are equal. A ref that led to a cluster
//!   keeps leading to it, even if the cluster is unreachable, until it is known
//!   to be deleted or to lead elsewhere: what can't be attributed can't be kept.
//!   A ref of the spec that can't be resolved (not Ready, no Secret, no claim)
//!   is unknown, not absent; `Common::lost` holds the cluster it led to.
//! - `clusters`: the observed state of each target (`ClusterSeen`), including
//!   those that only a recorded ref leads to. State that was not listed, or not
//!   since the connection broke, is `Seen::Unknown`; an object that does not
//!   exist is `Known(None)` or not in the map. `silent` is set if the cluster
//!   does not answer at all. `remembered` is the identity that this provider
//!   last read itself, never taken from a status. Certificates are already
//!   parsed. Ownership of fields in shared objects follows from their field
//!   managers (`Held`): only fields that `meshwright` *applied* count as ours,
//!   because our next apply removes only those.
//! - `origins`: by cluster, the owner of the credentials, the UID that the
//!   cluster reports and the private CA that proves it, while the connection
//!   works. If two owners are proven to use the same cluster, the younger object
//!   is rejected. A UID alone rejects no object.
//! - `evidence`: by link, the answer to the last dial with the fingerprint of
//!   the dialled material, and the reader's own view of the remote.
//! - `listed`: the workspaces whose objects are all known. `settled`: the
//!   clusters for which every object of their owners is known and every ref was
//!   resolved once; nothing is removed from the others. Both are per tenant, so
//!   that no tenant waits for another tenant's clusters. `unbound`: the clusters
//!   with an owner whose workspace is not bound and may be moving between shards
//!   of kcp; keys that no known object explains stay there.
//!
//! **Output** (`Plan`):
//! - `targets`: by cluster, all writes of all objects together; what is up to
//!   date is left out. `SecretApply` and `AnnotationApply` contain *all* our
//!   fields of that object, for one unforced server-side apply. `IdentityWrite`
//!   and `ElbWrite` are merge patches with the resourceVersion; they are not
//!   reverted on deletion. `CaCreate` is a create. `UsersWrite` is a merge patch
//!   with the resourceVersion, or an apply that creates. Policies belong to us
//!   alone: create, merge patch and delete with preconditions. If both
//!   connection Secrets change, cilium-kvstoremesh is written first.
//! - `touches` of an object must be recorded on it before anything is written
//!   for it.
//! - `dials`: the connection to test for each link. The answer goes into
//!   `evidence` with the dial's fingerprint; an answer for other material is
//!   ignored. Without an answer no new key is written (unless dialling is off).
//! - `bindings`, `services`, `intents`: phase, conditions, rows and problems of
//!   each object, without names of another tenant; for a deleted object its
//!   cleanup progress. While `awaits_dials` is set, a phase worse than the
//!   previous one should not be published yet.
//! - `recheck_at`: the next time at which the result changes without new
//!   observations.
//!
//! Never planned: a change of an identity in use, of a CA, of a Service's type,
//! or of a key, annotation or policy that belongs to another; a delete because
//! of something unknown.

mod addons;
mod annotation;
mod balancer;
mod binding;
mod binding_dependents;
mod ca;
mod connection;
mod context;
mod endpoint;
pub mod expiry;
mod export;
pub mod facts;
mod finding;
mod foreign_keys;
mod identity;
mod intent;
mod link;
mod material;
mod membership;
pub mod object;
mod peer_file;
pub mod plan;
mod planner;
mod policy;
mod remote_users;
mod rule;
pub mod secret;
mod sharing;
mod skew;
mod survey;
mod teardown;
mod users_file;
mod verify;
pub mod version;
pub mod world;

pub use finding::Step;
pub use planner::plan;
