//! After any sequence of changes, the incremental planner agrees with one that
//! plans everything from scratch.

use mw_core::kilo::plan;
use mw_core::kilo::planner::Planner;
use proptest::prelude::*;

use crate::harness::law;

#[test]
fn planning_step_by_step_equals_planning_from_scratch() {
    law(|scenario, _, _| {
        let mut world = scenario.fleet.world();
        let mut planner = Planner::new(world.clone());
        prop_assert_eq!(planner.plan(), plan(world.clone()));
        for (at, step) in scenario.steps.iter().enumerate() {
            step.play(&mut world, Some(&mut planner));
            prop_assert_eq!(
                planner.plan(),
                plan(world.clone()),
                "after step {}: {:?}",
                at,
                step
            );
        }
        Ok(())
    });
}

#[test]
fn changes_that_come_together_equal_planning_from_scratch() {
    law(|scenario, world, first| {
        let mut seen = scenario.fleet.world();
        let mut planner = Planner::new(seen.clone());
        planner.refresh();
        for step in &scenario.steps {
            step.play(&mut seen, Some(&mut planner));
        }
        prop_assert_eq!(&seen, world);
        prop_assert_eq!(&planner.plan(), first);
        Ok(())
    });
}
