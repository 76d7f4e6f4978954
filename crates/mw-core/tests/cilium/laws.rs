//! Laws of the planner over drawn fleets.
