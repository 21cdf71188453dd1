//! What every driver call passes on its way in and out.

use std::any::Any;
use std::cell::Cell;
use std::fmt::{Debug, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_sys::CUresult;

use super::slots;
use crate::call::Call;
use crate::runtime::op::Outcome;

/// Which variant of an entry point was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) slot: usize,
    /// Whether the null stream is the calling thread's.
    pub(crate) per_thread: bool,
}

thread_local! {
    // These two have no destructor: calls are possible for as long as a thread lives.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    /// The slot, plus one, whose host function the thread is running; 0 outside of those.
    static HOST_FUNCTION_OF: Cell<usize> = const { Cell::new(0) };
    /// Tells the simulators when the thread ends.
    static END: End = const { End };
}

struct End;

impl Drop for End {
    fn drop(&mut self) {
        // A call from a later destructor makes the thread known again; that costs an entry in a table and no more.
        let number = NUMBER.replace(0);
        if !crate::exit::is_under_way() {
            slots::for_each(|driver| driver.runtime.end_thread(number));
        }
    }
}

/// The calling thread's number: threads are numbered from 1 in the order of their first calls.
pub(crate) fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            // Not possible any more while the thread ends.
            let _ = END.try_with(|_| ());
        }
        number.get()
    })
}

/// While it lives, the thread runs a host function of the simulator in a slot, whose functions it must not call.
#[derive(Debug)]
pub(crate) struct HostFunction {
    before: usize,
}

impl HostFunction {
    pub(crate) fn begin(slot: usize) -> Self {
        Self { before: HOST_FUNCTION_OF.replace(slot + 1) }
    }
}

impl Drop for HostFunction {
    fn drop(&mut self) {
        HOST_FUNCTION_OF.set(self.before);
    }
}

/// Functions that need no `cuInit` and work in forked children: they tell constants.
const CONSTANT: [&str; 4] = ["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"];

/// What a host function may call besides: what needs no context to be current. The last two wait there, for what waits for them.
const HARMLESS: &str = "cuThreadExchangeStreamCaptureMode cuStreamQuery cuStreamGetId cuStreamIsCapturing cuEventQuery cuEventRecord cuStreamSynchronize cuEventSynchronize";

/// Runs a driver call: finds the simulator, applies what was asked to go wrong, models the call and logs it.
///
/// Nothing unwinds out of it: an entry point is called from C.
pub(super) fn enter(
    door: Door,
    function: &'static str,
    arguments: &dyn Fn(&mut String),
    model: &dyn Fn(&Call<'_>) -> Outcome<()>,
) -> CUresult {
    let outcome = catch_unwind(AssertUnwindSafe(|| guarded(door, function, arguments, model)));
    match outcome {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            crate::report::say(&format!(
                "cuda-mem-sim: the model of {function} panicked, which is a bug of it"
            ));
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

fn guarded(
    door: Door,
    function: &'static str,
    arguments: &dyn Fn(&mut String),
    model: &dyn Fn(&Call<'_>) -> Outcome<()>,
) -> Outcome<()> {
    if crate::exit::is_under_way() {
        return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
    }
    let is_constant = CONSTANT.contains(&function);
    let driver = if is_constant { slots::find_in_child(door.slot)? } else { slots::find(door.slot)? };
    let is_inside = HOST_FUNCTION_OF.get() == door.slot + 1;
    if is_inside && !is_constant && !HARMLESS.split(' ').any(|harmless| harmless == function) {
        driver.log.refused(function, thread_number(), CUresult::CUDA_ERROR_NOT_PERMITTED);
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    let call = Call::new(&driver, function, driver.next_call_number(), door.per_thread, thread_number());
    if slots::is_forked_child() {
        // The parent may have been in the middle of logging when it forked.
        return model(&call);
    }
    if !is_inside {
        driver.freeing.make_wait(function);
    }
    let outcome = match driver.faults.strike(function, call.number) {
        Some(code) => Err(code),
        None if !is_constant && function != "cuInit" && !driver.is_initialised() => {
            Err(CUresult::CUDA_ERROR_NOT_INITIALIZED)
        }
        None => model(&call),
    };
    // To look a function up is not yet a call of the program's.
    if function != "cuGetProcAddress" {
        driver.log.call(&call, arguments, outcome);
    }
    outcome
}

/// Appends an argument to the text of a logged call.
pub(super) fn show<T: Debug + Any>(text: &mut String, name: &str, value: &T) {
    if !text.is_empty() {
        text.push_str(", ");
    }
    // Addresses, handles and flags of 64 bits read better in hexadecimal; sizes are `usize`. Writing to a string cannot
    // fail.
    let _ = match (value as &dyn Any).downcast_ref::<u64>() {
        Some(value) => write!(text, "{name}={value:#x}"),
        None => write!(text, "{name}={value:?}"),
    };
}
