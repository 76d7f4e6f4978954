//! In-memory Kubernetes API servers, as tower services, for simulations and
//! demonstrations: no sockets, no threads, no wall clock and no randomness. The same
//! seed, requests and tokio time give the same answers.
//!
//! Serves Nodes, Namespaces, Secrets, ConfigMaps, Leases, Events (`events.k8s.io`),
//! CustomResourceDefinitions, SelfSubjectAccessReviews and custom resources. Services,
//! EndpointSlices, Pods, DaemonSets and Deployments are stored as tests write them
//! through [`Cluster::call`]; clients can read them, change their metadata and delete
//! them. Only the API server is simulated: no controller runs, so nothing empties a
//! deleted Namespace or garbage collects by owner references.
//!
//! Unsupported requests are rejected with 501 and a message; they never appear to
//! succeed. `tests/conformance` compares the simulator with a real API server.
//!
//! # Known differences from a real server
//!
//! - `metadata.managedFields` are kept, and objects can be applied, only with
//!   [`Settings::managed_fields`]. CustomResourceDefinitions never have them. A Pod's
//!   spec and status, pod templates, and some parts of a Node's status count as one
//!   field each, and can't be applied (501).
//! - There are no warnings in answers (`fieldValidation=Warn` acts like `Ignore`).
//! - Applying nulls is 501, and so is applying changes to existing
//!   CustomResourceDefinitions. So are strategic merge patches of built-in kinds, dry
//!   runs, tables and updates of definitions.
//! - Kinds that only tests write get no defaults and no validation except for types. A
//!   Service gets no addresses, and a Pod is deleted immediately.
//! - A definition is served immediately after creation, and removed with all its
//!   objects immediately after deletion; a real server takes a moment for either.
//! - Bookmarks are sent every 60 s, and a watch without `timeoutSeconds` ends after
//!   1,800 s; a real server randomizes both.
//! - A resourceVersion from the future is rejected immediately, not after 3 s.
//! - The size limit of etcd is applied to the JSON of an object, while a real server
//!   stores built-in kinds in a more compact encoding.
//! - Secrets of the types `kubernetes.io/…` except `tls` are 501, because they have
//!   specific rules.
//! - A JSON patch can't count list entries from the end (422), and its paths must start
//!   with a slash (501).
//! - Unset parts of a Node's status are absent; a real server writes some of them
//!   empty.
//! - Messages about wrong JSON types give the path, not the Go type.
//! - [`Fate::Stale`] also applies to reads without resourceVersion, which a real server
//!   answers from a quorum.

mod account;
mod answer;
mod builtin;
mod cluster;
mod crd;
mod decode;
mod discovery;
mod fault;
mod fields;
mod json;
pub mod kilo;
mod kind;
mod lie;
mod managers;
mod meta;
mod object;
mod path;
mod proxy;
mod query;
mod read;
mod refusal;
mod request;
mod review;
mod schema;
mod selector;
mod server;
mod store;
mod uid;
mod wall;
mod watch;
mod write;

pub use account::{Account, Rule};
pub use cluster::{Cluster, Reachability, Settings};
pub use crd::{Definition, Unsupported};
pub use fault::{Delivery, Fate, Faults, Observer, RequestOutcome, Write};
pub use lie::{Lie, Lies, Span};
pub use path::Target;
pub use proxy::Pods;
pub use query::Query;
pub use request::{Request, Verb};
pub use server::{Body, Lost, Server};
pub use wall::{Moment, Wall};
