//! Runs scenarios as named tests, with setup and cleanup.

use std::future::Future;

use libtest_mimic::{Arguments, Trial};

/// A build machine has two cores, enough for two testbeds.
const MOST_AT_ONCE: usize = 2;

pub(crate) fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(
        arguments
            .test_threads
            .unwrap_or(MOST_AT_ONCE)
            .min(MOST_AT_ONCE),
    );
    arguments
}

/// Creates a test for each scenario, named like its function.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trials::trial(stringify!($name), $name)),*]
        }
    };
}
pub(crate) use scenarios;

pub(crate) fn trial<F, Fut>(name: impl Into<String>, scenario: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let name = name.into();
    Trial::test(name.clone(), move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let longest = crate::LONGEST_SCENARIO;
        let ended = runtime.block_on(async { tokio::time::timeout(longest, scenario()).await });
        assert!(ended.is_ok(), "{name} did not end within {longest:?}");
        crate::settle(&name);
        Ok(())
    })
}
