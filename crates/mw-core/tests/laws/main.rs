//! Laws of the planner over drawn fleets.

mod fleet;
mod harness;
mod incremental;
mod kilo_rules;
mod members;
mod overlap;
mod safety;
mod shape;
mod steps;
