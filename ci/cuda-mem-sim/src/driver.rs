//! One simulated driver: what all parts of it share.

use std::backtrace::Backtrace;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::config::Config;
use crate::fault::Faults;
use crate::freeing::Freeing;
use crate::log::Recorder;
use crate::memory::misuse::Leak;
use crate::memory::{Memory, Setup};
use crate::runtime::Runtime;
use crate::{dispatch, exit};

/// One simulated driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    pub(crate) slot: usize,
    pub(crate) memory: Memory,
    pub(crate) runtime: Runtime,
    pub(crate) log: Recorder,
    pub(crate) faults: Faults,
    pub(crate) freeing: Freeing,
    calls: AtomicU64,
    initialised: AtomicBool,
}

impl Driver {
    pub(crate) fn new(config: Config, slot: usize) -> Arc<Self> {
        let setup = Setup {
            devices: config.devices.iter().map(|device| device.memory).collect(),
            nodes: config.numa_nodes,
            lock_limit: config.host_memory,
            account: config.account.clone(),
            has_data: config.has_data,
            finds_misuse: config.finds_misuse,
        };
        let log =
            config.log.as_ref().and_then(|path| File::options().create(true).append(true).open(path).ok());
        let faults = Faults::default();
        for (function, nth, code) in &config.faults {
            faults.fail((function != "any").then_some(function), *nth, *code);
        }
        for (nth, offset) in &config.flips {
            faults.flip(*nth, *offset);
        }
        if slot == dispatch::DEFAULT_SLOT {
            exit::watch();
        }
        Arc::new_cyclic(|driver| Self {
            memory: Memory::new(setup),
            runtime: Runtime::new(driver.clone(), &config, slot),
            log: Recorder::new(config.records, log),
            faults,
            freeing: Freeing::default(),
            calls: AtomicU64::new(0),
            initialised: AtomicBool::new(false),
            slot,
            config,
        })
    }

    /// The number of the call that begins now.
    pub(crate) fn next_call_number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.load(Ordering::Acquire)
    }

    pub(crate) fn initialise(&self) {
        self.memory.lock().account.enter();
        dispatch::mark_initialised(self.slot);
        self.initialised.store(true, Ordering::Release);
    }

    /// Where in the program the current call was made, if anybody wants to know.
    pub(crate) fn backtrace(&self) -> Option<Arc<Backtrace>> {
        self.config.backtraces.then(|| Arc::new(Backtrace::force_capture()))
    }

    /// What was made and not released yet.
    pub(crate) fn leaks(&self) -> Vec<Leak> {
        let mut leaks = self.memory.lock().leaks();
        leaks.extend(self.runtime.leaks());
        leaks
    }

    /// Tells what was misused and leaked, if the configuration says where to.
    pub(crate) fn report_at_exit(&self) {
        let Some(target) = &self.config.report else { return };
        let misuse = self.memory.lock().misuse();
        let leaks = self.leaks();
        let mut text = format!("cuda-mem-sim: {} misused, {} leaked", misuse.len(), leaks.len());
        for line in misuse.iter().map(|misuse| format!("\nmisuse: {misuse}")) {
            text.push_str(&line);
        }
        for line in leaks.iter().map(|leak| format!("\nleak: {leak}")) {
            text.push_str(&line);
        }
        target.write(&text);
    }
}
