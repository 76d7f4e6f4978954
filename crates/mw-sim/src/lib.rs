//! Kubernetes API servers in memory, as tower services, for simulations and
//! demonstrations: no socket, no thread, no clock and no randomness of its own.
//! The same seed, the same requests and the same moments of tokio's clock give
//! the same answers.
//!
//! It serves Nodes, Namespaces, Secrets, ConfigMaps, Leases, Events
//! (`events.k8s.io`), CustomResourceDefinitions, SelfSubjectAccessReviews and
//! what those definitions define. Services, EndpointSlices, Pods, DaemonSets and
//! Deployments are kept as the tester's hand ([`Cluster::call`]) writes them, for
//! clients to read, to change their metadata and to delete. It is an API server
//! alone: no controller runs, so nobody empties a deleted Namespace or follows
//! owner references.
//!
//! What it does not do it refuses with 501 and says so; it never says a wrong
//! yes. `tests/conformance` holds it against a real API server.
//!
//! # Known differences from a real server
//!
//! - `metadata.managedFields` are kept, and things can be applied, where
//!   [`Settings::managed_fields`] says so; never in CustomResourceDefinitions.
//!   What is below a Pod's spec and status, a template of pods, and some parts of
//!   a Node's status is one field there, and can't be applied (501).
//! - There are no warnings in answers (`fieldValidation=Warn` acts like `Ignore`).
//! - Server-side apply of nulls is 501, and so is that of CustomResourceDefinitions
//!   that exist and would change. So are strategic merge patches of built-in kinds,
//!   dry runs, tables and updates of definitions.
//! - What only the tester's hand writes gets no defaults and no validation but of
//!   its types, a Service no addresses, and a Pod goes at once.
//! - A definition is served, and gone with all its objects, at once; a real
//!   server takes some moments for either.
//! - Bookmarks come every 60 s, a watch without `timeoutSeconds` ends after
//!   1,800 s; a real server draws both at random.
//! - A version from the future is refused at once and not after 3 s.
//! - An object too large for etcd is told by the length of its JSON, while a
//!   real server keeps built-in kinds in a shorter encoding.
//! - Secrets of the types `kubernetes.io/…` but `tls` are 501: those have rules of
//!   their own.
//! - A JSON patch may not count list entries from the end (422), and its paths
//!   must begin with a slash (501).
//! - Parts of a Node's status that nobody set are not there, where a real server
//!   writes some of them empty.
//! - Messages about JSON of a wrong type give the place, not the type in Go.
//! - [`Fate::Stale`] also answers reads that name no version, which real
//!   servers read from a quorum.

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
pub use cluster::{Cluster, Link, Settings};
pub use crd::{Definition, Unsupported};
pub use fault::{Delivery, Fate, Faults, Observer, Outcome, Write};
pub use lie::{Lie, Lies, Span};
pub use path::Target;
pub use proxy::Pods;
pub use query::Query;
pub use request::{Request, Verb};
pub use server::{Body, Lost, Server};
pub use wall::{Moment, Wall};
