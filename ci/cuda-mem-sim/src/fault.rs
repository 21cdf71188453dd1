//! Calls that are made to fail or to take long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_mem_sys::CUresult;

/// A fault that struck: the call did nothing and returned the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Struck {
    /// The function that was called.
    pub function: &'static str,
    /// The number of the call.
    pub number: u64,
    /// What it returned.
    pub code: CUresult,
}

/// Functions that count for no overall fault: a program asks them what it could as well have known.
const SPARED: [&str; 4] = ["cuGetProcAddress", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];

/// What is to go wrong.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Whether there is anything to look up: most simulators are never told to fail.
    armed: AtomicBool,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: Vec<Fault>,
    delays: Vec<(String, Duration)>,
    flips: Vec<Flip>,
    struck: Vec<Struck>,
}

#[derive(Debug)]
struct Fault {
    /// None for any function.
    function: Option<String>,
    /// How many more matching calls pass before one fails.
    passing: u64,
    /// None to end the process instead.
    code: Option<CUresult>,
}

/// A copy that is to arrive damaged.
#[derive(Debug)]
struct Flip {
    /// How many more copies arrive whole before one does not.
    passing: u64,
    /// Which of its bytes.
    offset: u64,
}

impl Faults {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `nth` call from now fails, of one function or of any; 1 is the next.
    pub(crate) fn fail(&self, function: Option<&str>, nth: u64, code: CUresult) {
        self.plan_fault(function, nth, Some(code));
    }

    /// The process ends at the `nth` call from now, of any function.
    pub(crate) fn kill(&self, nth: u64) {
        self.plan_fault(None, nth, None);
    }

    fn plan_fault(&self, function: Option<&str>, nth: u64, code: Option<CUresult>) {
        let function = function.map(str::to_owned);
        self.plan().faults.push(Fault { function, passing: nth.saturating_sub(1), code });
        self.armed.store(true, Ordering::Release);
    }

    /// Each call of a function takes this much longer; zero ends that.
    pub(crate) fn delay(&self, function: &str, by: Duration) {
        let mut plan = self.plan();
        plan.delays.retain(|(delayed, _)| delayed != function);
        plan.delays.push((function.to_owned(), by));
        self.armed.store(true, Ordering::Release);
    }

    /// The byte at `offset` of the `nth` copy from now arrives with one bit flipped; 1 is the next.
    pub(crate) fn flip(&self, nth: u64, offset: u64) {
        self.plan().flips.push(Flip { passing: nth.saturating_sub(1), offset });
        self.armed.store(true, Ordering::Release);
    }

    /// Which byte of a copy of `len` bytes, that has just been made, is to be damaged.
    pub(crate) fn damage(&self, len: u64) -> Option<u64> {
        if !self.armed.load(Ordering::Acquire) {
            return None;
        }
        let mut damaged = None;
        self.plan().flips.retain_mut(|flip| {
            if flip.passing > 0 {
                flip.passing -= 1;
                return true;
            }
            damaged = Some(flip.offset).filter(|&offset| offset < len).or(damaged);
            false
        });
        damaged
    }

    /// Nothing goes wrong any more.
    pub(crate) fn clear(&self) {
        *self.plan() = Plan::default();
        self.armed.store(false, Ordering::Release);
    }

    /// The faults that struck so far.
    pub(crate) fn struck(&self) -> Vec<Struck> {
        self.plan().struck.clone()
    }

    /// What a call is to return instead of being made, after the delay that its function has.
    pub(crate) fn strike(&self, function: &'static str, number: u64) -> Option<CUresult> {
        if !self.armed.load(Ordering::Acquire) {
            return None;
        }
        let mut plan = self.plan();
        let delay = plan.delays.iter().find(|(delayed, _)| delayed == function).map(|(_, delay)| *delay);
        let mut code = None;
        plan.faults.retain_mut(|fault| {
            let counts = match &fault.function {
                Some(wanted) => wanted == function,
                None => !SPARED.contains(&function),
            };
            if !counts || code.is_some() {
                return true;
            }
            if fault.passing > 0 {
                fault.passing -= 1;
                return true;
            }
            code = fault.code;
            if code.is_none() {
                std::process::abort();
            }
            false
        });
        if let Some(code) = code {
            plan.struck.push(Struck { function, number, code });
        }
        drop(plan);
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

    #[test]
    fn the_nth_call_of_one_function_fails_once() {
        let faults = Faults::default();
        faults.fail(Some("cuMemAlloc"), 2, OUT_OF_MEMORY);
        let calls = ["cuMemAlloc", "cuMemFree", "cuMemAlloc", "cuMemAlloc"];
        let failed: Vec<_> = (1..).zip(calls).map(|(number, call)| faults.strike(call, number)).collect();
        assert_eq!(failed, [None, None, Some(OUT_OF_MEMORY), None]);
        assert_eq!(faults.struck(), [Struck { function: "cuMemAlloc", number: 3, code: OUT_OF_MEMORY }]);
    }

    #[test]
    fn the_nth_copy_is_damaged_once_and_only_where_it_has_bytes() {
        let faults = Faults::default();
        faults.flip(2, 5);
        assert_eq!([faults.damage(10), faults.damage(10), faults.damage(10)], [None, Some(5), None]);
        faults.flip(1, 10);
        assert_eq!([faults.damage(10), faults.damage(11)], [None, None]);
    }

    #[test]
    fn an_overall_fault_spares_what_only_tells_constants() {
        let faults = Faults::default();
        faults.fail(None, 1, OUT_OF_MEMORY);
        assert_eq!(faults.strike("cuDriverGetVersion", 1), None);
        assert_eq!(faults.strike("cuInit", 2), Some(OUT_OF_MEMORY));
        assert_eq!(faults.strike("cuInit", 3), None);
    }
}
