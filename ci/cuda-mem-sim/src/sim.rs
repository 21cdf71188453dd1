//! The simulator as tests hold it.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_mem_sys::{CUresult, LoadError, Table};

use crate::config::Builder;
use crate::dispatch::{self, Door};
use crate::driver::Driver;
use crate::fault::Struck;
use crate::log::Log;
use crate::memory::misuse::{Leak, Misuse};

/// A simulated driver with its devices.
///
/// A process can have fifteen at a time, besides the one behind [`table`](crate::table). Dropping one ends its threads;
/// calls through its table return `CUDA_ERROR_DEINITIALIZED` from then on, until another simulator takes its place.
/// What is given back later still, by a thread in the background say, is asked of that one and recorded there: a test whose
/// simulator others follow drops it when nothing is left ([`leaks`](Self::leaks)).
#[derive(Debug)]
pub struct Sim {
    driver: Arc<Driver>,
    table: OnceLock<&'static Table>,
}

impl Sim {
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self { driver, table: OnceLock::new() }
    }

    /// One device of 8 GiB and a driver of CUDA 13.0 unless told otherwise.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Its functions. The table is never freed.
    ///
    /// # Panics
    ///
    /// If there can be none; [`new_table`](Self::new_table) says why.
    #[must_use]
    pub fn table(&self) -> &'static Table {
        self.table.get_or_init(|| table_of(&self.driver))
    }

    /// Its functions in a table of one's own: another table of the same library.
    ///
    /// # Errors
    ///
    /// As [`Table::from_lookup`]: a driver that is too old, or one that was told not to tell its version.
    pub fn new_table(&self) -> Result<Table, LoadError> {
        new_table(&self.driver)
    }

    /// The address of an exported symbol, as the system's loader would find it in a driver's library; null if there is none.
    #[must_use]
    pub fn symbol(&self, name: &CStr) -> *const c_void {
        let door = Door { slot: self.driver.slot, per_thread: false };
        address_of_export(door, name, &self.driver.config.missing)
    }

    /// The calls that were made; see [`record`](Self::record).
    #[must_use]
    pub fn log(&self) -> Log {
        Log::new(Arc::clone(&self.driver))
    }

    /// Records calls from now on, or no longer.
    pub fn record(&self, on: bool) {
        self.log().record(on);
    }

    /// The `nth` call of `function` from now returns `code` and does nothing; 1 is the next.
    ///
    /// # Panics
    ///
    /// If there is no such function: a fault that can never strike would let a test pass for nothing.
    pub fn fail_call(&self, function: &str, nth: u64, code: CUresult) {
        self.driver.faults.fail(Some(known(function)), nth, code);
    }

    /// The `nth` driver call from now, of any function, returns `code` and does nothing; 1 is the next.
    ///
    /// `cuGetProcAddress`, `cuDriverGetVersion` and the texts of errors do not count and do not fail.
    pub fn fail_nth_call_overall(&self, nth: u64, code: CUresult) {
        self.driver.faults.fail(None, nth, code);
    }

    /// The process aborts at the `nth` driver call from now, of any function but those, before the call does anything; 1 is the next.
    pub fn kill_at_nth_call_overall(&self, nth: u64) {
        self.driver.faults.kill(nth);
    }

    /// The byte at `offset` of the `nth` copy from now arrives with one bit flipped; 1 is the next copy, of any function.
    pub fn flip_byte(&self, nth: u64, offset: u64) {
        self.driver.faults.flip(nth, offset);
    }

    /// The faults that struck so far.
    #[must_use]
    pub fn struck(&self) -> Vec<Struck> {
        self.driver.faults.struck()
    }

    /// Each call of `function` takes that much longer from now on.
    ///
    /// # Panics
    ///
    /// If there is no such function.
    pub fn delay(&self, function: &str, by: Duration) {
        self.driver.faults.delay(known(function), by);
    }

    /// No call fails or takes longer any more, and those that did are forgotten.
    pub fn clear_faults(&self) {
        self.driver.faults.clear();
    }

    /// The file of its [account](crate::Builder::account), for as long as this process has the simulator.
    #[must_use]
    pub fn account(&self) -> PathBuf {
        self.driver.memory.lock().account.path()
    }

    /// Uses of memory that nothing orders before its free or after its allocation.
    #[must_use]
    pub fn misuse(&self) -> Vec<Misuse> {
        self.driver.memory.lock().misuse()
    }

    /// What was made and not released.
    #[must_use]
    pub fn leaks(&self) -> Vec<Leak> {
        self.driver.leaks()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Before another simulator has the slot, and with it these functions.
        // SAFETY: what was made by this one is refused once the slot is empty, and the next one does not know it.
        unsafe { cuda_mem_sys::LibraryId::retire(self.symbol(c"cuInit")) };
        dispatch::clear(self.driver.slot);
        self.driver.runtime.stop();
    }
}

fn known(function: &str) -> &'static str {
    #[allow(clippy::panic, reason = "a misspelt name is a mistake in the test that has it")]
    match dispatch::is_function(function) {
        Some(known) => known,
        None => panic!("the driver has no function {function:?}"),
    }
}

/// The table of the simulator that a process has without asking: configured by `CUDA_MEM_SIM`, never dropped.
///
/// # Panics
///
/// If the configuration is bad; the message says what is accepted.
#[must_use]
pub fn table() -> &'static Table {
    static TABLE: OnceLock<&'static Table> = OnceLock::new();
    #[allow(
        clippy::panic,
        reason = "a test that asks for a table has no other way to learn that it cannot have one"
    )]
    TABLE.get_or_init(|| match dispatch::default_driver() {
        Some(driver) => table_of(&driver),
        None => panic!("the environment variable CUDA_MEM_SIM does not describe a simulator"),
    })
}

/// What was misused of the memory of the simulator behind [`table`], as [`Sim::misuse`] tells it of others.
#[must_use]
pub fn misuse() -> Vec<Misuse> {
    dispatch::default_driver().map_or_else(Vec::new, |driver| driver.memory.lock().misuse())
}

/// The file of the account of the simulator behind [`table`], as [`Sim::account`] tells that of others.
#[must_use]
pub fn account() -> PathBuf {
    dispatch::default_driver().map_or_else(PathBuf::new, |driver| driver.memory.lock().account.path())
}

fn table_of(driver: &Driver) -> &'static Table {
    #[allow(clippy::panic, reason = "only a simulator that was built to have no table gets here")]
    match new_table(driver) {
        Ok(table) => Box::leak(Box::new(table)),
        Err(error) => panic!("the simulator gives no table: {error}"),
    }
}

fn new_table(driver: &Driver) -> Result<Table, LoadError> {
    let door = Door { slot: driver.slot, per_thread: false };
    let missing = driver.config.missing.clone();
    let lookup = move |symbol: &CStr| address_of_export(door, symbol, &missing);
    // SAFETY: the entry points are functions of this program, checked at compile time against the types of the bindings.
    unsafe { Table::from_lookup(lookup) }
}

/// The address of an exported symbol of the driver, null if there is none.
fn address_of_export(door: Door, symbol: &CStr, missing: &BTreeSet<String>) -> *const c_void {
    if symbol == c"cuGetProcAddress_v2" {
        let address =
            dispatch::entries::lookup::V2.get(door.slot).filter(|_| !missing.contains("cuGetProcAddress"));
        return address.map_or(std::ptr::null(), |&function| function as *const c_void);
    }
    let row = dispatch::row_of_export(symbol).filter(|row| !missing.contains(row.name()));
    row.map_or(std::ptr::null(), |row| row.address(door))
}
