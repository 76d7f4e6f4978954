//! The Cilium back end: from ClusterMeshBindings, GlobalServices and
//! ConnectivityIntents, and what the clusters were seen to hold, to what each
//! of them must hold.
//!
//! # The contract
//!
//! `plan(&World) -> Plan` is pure: the same world gives the same plan, whatever
//! was planned before. Whoever calls it keeps the world, does what the plan
//! says and puts into the world what came of it.
//!
//! **Given** (`World`):
//! - `bindings`, `services`, `intents`: the objects of all tenants, specs as
//!   texts. `Common::workspace` keeps equal names of two tenants apart; on a
//!   hub it is the hub's UID. `Common::refs` says where each ref leads that the
//!   object names or has touched (`Resolution`). A `ClusterId` stands for the
//!   credentials of one owner that lead to a cluster, so no object is ever
//!   planned for through another owner's. Two refs of one owner lead to the
//!   same cluster if and only if their `ClusterId`s are equal. A ref that led to
//!   a cluster goes on leading to it, silent if need be, until it is known to be
//!   gone or to lead elsewhere: what can't be attributed can't be held. A ref of
//!   the spec that can't be resolved (not Ready, no Secret, no claim) is unknown,
//!   not absent; `Common::lost` says where it led.
//! - `clusters`: what each target was seen to hold (`ClusterSeen`), also of
//!   those that only a touched ref leads to. What was
//!   not listed, or not since the connection broke, is `Seen::Unknown`; what
//!   was looked for and is not there is `Known(None)` or not in the map.
//!   `silent` says that the cluster does not answer at all. `remembered` is the
//!   identity that this provider itself read last; a status is never its
//!   source. Certificates arrive parsed. Fields that we own in objects of
//!   others are told by their managers (`Held`): only what `meshwright`
//!   *applied* counts as ours, because only that our next apply lets go.
//! - `origins`: by cluster, whose credentials lead there, the UID that it
//!   reports and the private CA that proves it, while the connection works.
//!   Where two owners are proven to use the same cluster, the younger object is
//!   refused. A UID alone refuses nobody.
//! - `evidence`: by link, the answer to the last dial with the fingerprint of
//!   what was dialled, and what the reader itself says of the remote.
//! - `listed`: the workspaces whose objects are all known. `settled`: the
//!   clusters for which every object of their owners is known and every ref was
//!   looked up once; nothing is removed from the others. Both are per tenant, so
//!   that nobody waits for another tenant's clusters.
//!
//! **Returned** (`Plan`):
//! - `targets`: by cluster everything to be written there, all objects
//!   together; what is as wanted is not in it. `SecretApply` and
//!   `AnnotationApply` carry *all* that is ours in that object from now on, for
//!   one server-side apply, never forced. `IdentityWrite` and `ElbWrite` are
//!   merge patches with the resourceVersion: they stay when we go. `CaCreate`
//!   is a create. `UsersWrite` is a merge patch with the resourceVersion, or an
//!   apply that creates. Policies are ours alone: create, merge patch and delete with
//!   preconditions. Where both connection Secrets change, cilium-kvstoremesh is
//!   written first.
//! - `touches` of an object must be noted on it before anything is written for it.
//! - `dials`: what to connect to for each link. The answer goes into `evidence`
//!   with the dial's fingerprint; an answer to other material counts for
//!   nothing. Without an answer no new key is written (unless dialling is off).
//! - `bindings`, `services`, `intents`: phase, conditions, rows and problems of
//!   each object, in words that name nothing of another tenant; for a deleted
//!   one how far its cleanup is. While `awaits_dials` is set, a phase worse than
//!   the one before should not be published yet.
//! - `recheck_at`: when time alone changes something.
//!
//! What is never planned: a change of a live identity, of a CA, of a Service's
//! type, of a key, annotation or policy that is another's; a delete on account
//! of something unknown.

mod annotation;
mod authority;
mod balancer;
mod binding;
mod connection;
mod endpoint;
mod expected;
mod export;
pub mod facts;
mod finding;
mod identity;
mod intent;
mod link;
mod material;
mod membership;
pub mod object;
mod peer_file;
pub mod plan;
mod planner;
pub mod policy;
mod reliance;
mod remote_users;
mod rule;
mod scene;
pub mod secret;
mod sharing;
mod survey;
mod teardown;
mod users_file;
mod verify;
pub mod version;
pub mod world;

pub use finding::Step;
pub use planner::plan;
