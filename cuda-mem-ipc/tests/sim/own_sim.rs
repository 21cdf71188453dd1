//! Simulators that go last.

use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_sim::{Builder, Sim};

/// Far longer than anything is left.
const LIMIT: Duration = Duration::from_secs(60);

/// A simulator of one test, which ends when all that was made with it has been given back: what a connection leaves goes in the background.
///
/// The next simulator takes the place of one that was dropped, and has its functions. Whatever were given back later would be asked of that one,
/// of another test, which refuses it, counts it and has it in its log.
pub(crate) struct OwnSim(Sim);

impl OwnSim {
    pub(crate) fn of(builder: Builder) -> Self {
        Self(builder.build())
    }
}

impl Deref for OwnSim {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.0
    }
}

impl Drop for OwnSim {
    fn drop(&mut self) {
        let start = Instant::now();
        // A test that fails may have left anything.
        while !thread::panicking() && !self.0.leaks().is_empty() {
            let leaks = || self.0.leaks().iter().map(ToString::to_string).collect::<Vec<_>>();
            assert!(start.elapsed() < LIMIT, "left: {:#?}", leaks());
            thread::sleep(Duration::from_millis(1));
        }
    }
}
