//! The places that simulators occupy, one each.
//!
//! Entry points know their slot and nothing else. Looking a simulator up takes a read lock of its slot, never one that a
//! forked child's parent may have held: that a process is a child is known before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};

use cuda_mem_sys::CUresult;

use super::SLOTS;
use crate::config::Builder;
use crate::driver::Driver;

/// The slot of the simulator that a process has without asking: `cuda_mem_sim::table()` and the shared library.
pub(crate) const DEFAULT_SLOT: usize = 0;

struct Slot {
    driver: RwLock<Option<Arc<Driver>>>,
    /// The generation of the process (see [`generation`]) in which the simulator was initialised, plus one; 0 before.
    initialised_in: AtomicU64,
}

static ALL: [Slot; SLOTS] =
    [const { Slot { driver: RwLock::new(None), initialised_in: AtomicU64::new(0) } }; SLOTS];

/// Which slots are taken, and a signal for those who wait for one.
static TAKEN: Mutex<[bool; SLOTS]> = Mutex::new([false; SLOTS]);
static GIVEN_BACK: Condvar = Condvar::new();

/// How many forks lie between this process and the one that loaded the simulator.
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Notes that the simulator in a slot was initialised in this process: its forked children cannot use it.
pub(crate) fn mark_initialised(slot: usize) {
    static FORKS_ARE_COUNTED: OnceLock<()> = OnceLock::new();
    FORKS_ARE_COUNTED.get_or_init(|| {
        // SAFETY: the handler only increments an atomic, which is allowed in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
    if let Some(slot) = ALL.get(slot) {
        slot.initialised_in.store(GENERATION.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Whether the process is a forked child of one that had initialised a simulator.
pub(super) fn is_forked_child() -> bool {
    GENERATION.load(Ordering::Relaxed) != 0
}

/// The simulator in a slot: error 3 in a forked child, 4 if there is none.
pub(crate) fn find(slot: usize) -> Result<Arc<Driver>, CUresult> {
    let place = ALL.get(slot).ok_or(CUresult::CUDA_ERROR_DEINITIALIZED)?;
    let initialised_in = place.initialised_in.load(Ordering::Relaxed);
    if initialised_in != 0 && initialised_in != GENERATION.load(Ordering::Relaxed) + 1 {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    let found = place.driver.read().unwrap_or_else(PoisonError::into_inner).clone();
    or_default(slot, found)
}

/// As [`find`], also in a forked child; there it takes no lock that the parent held.
pub(super) fn find_in_child(slot: usize) -> Result<Arc<Driver>, CUresult> {
    let place = ALL.get(slot).ok_or(CUresult::CUDA_ERROR_DEINITIALIZED)?;
    if !is_forked_child() {
        return find(slot);
    }
    let found = match place.driver.try_read() {
        Ok(driver) => driver.clone(),
        Err(_) => return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    };
    or_default(slot, found)
}

fn or_default(slot: usize, found: Option<Arc<Driver>>) -> Result<Arc<Driver>, CUresult> {
    match found {
        Some(driver) => Ok(driver),
        None if slot == DEFAULT_SLOT => default_driver().ok_or(CUresult::CUDA_ERROR_UNKNOWN),
        None => Err(CUresult::CUDA_ERROR_DEINITIALIZED),
    }
}

/// Calls a function with every simulator that was initialised and that this process can use.
pub(super) fn for_each(call: impl Fn(&Driver)) {
    for (slot, place) in ALL.iter().enumerate() {
        let is_there = place.initialised_in.load(Ordering::Relaxed) != 0;
        if let Some(driver) = is_there.then(|| find(slot).ok()).flatten() {
            call(&driver);
        }
    }
}

/// Makes a simulator for a free slot and puts it there; waits until there is one.
pub(crate) fn occupy(make: impl FnOnce(usize) -> Arc<Driver>) -> Arc<Driver> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = loop {
        let free = (0..SLOTS).find(|&slot| slot != DEFAULT_SLOT && taken.get(slot) == Some(&false));
        match free {
            Some(slot) => break slot,
            None => taken = GIVEN_BACK.wait(taken).unwrap_or_else(PoisonError::into_inner),
        }
    };
    if let Some(taken) = taken.get_mut(slot) {
        *taken = true;
    }
    drop(taken);
    let driver = make(slot);
    put(slot, Some(Arc::clone(&driver)));
    driver
}

/// Takes the simulator out of its slot, which the next one may have.
pub(crate) fn clear(slot: usize) {
    put(slot, None);
    if let Some(taken) = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).get_mut(slot) {
        *taken = false;
    }
    GIVEN_BACK.notify_one();
}

fn put(slot: usize, driver: Option<Arc<Driver>>) {
    if let Some(place) = ALL.get(slot) {
        place.initialised_in.store(0, Ordering::Relaxed);
        let old =
            std::mem::replace(&mut *place.driver.write().unwrap_or_else(PoisonError::into_inner), driver);
        // Ended outside the lock: a simulator's end takes locks of its own.
        drop(old);
    }
}

/// The simulator that the process has without asking, made by the first who needs it; none if its configuration is bad.
pub(crate) fn default_driver() -> Option<Arc<Driver>> {
    static MADE: OnceLock<Option<Arc<Driver>>> = OnceLock::new();
    let made = MADE.get_or_init(|| match Builder::from_env() {
        Ok(builder) => {
            let driver = builder.into_driver(DEFAULT_SLOT);
            put(DEFAULT_SLOT, Some(Arc::clone(&driver)));
            Some(driver)
        }
        Err(error) => {
            // There is no other way to tell: the program asked for a driver, not for a configuration.
            crate::report::say(&format!("cuda-mem-sim: {error}"));
            None
        }
    });
    made.clone()
}
