//! Plans and status of the Kilo back end, as text or data.

pub(crate) mod diff;
pub(crate) mod matrix;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod status_report;
pub(crate) mod text;
