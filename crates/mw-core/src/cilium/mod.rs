//! The Cilium back end: from bindings, global services and intents, and what
//! the clusters were seen to hold, to what each of them must hold.

pub mod facts;
pub mod object;
pub mod plan;
pub mod secret;
pub mod version;
