//! What the engine asks of its owner: memory, the order of streams, and what is tried when there is no memory.

use std::fmt::Debug;
use std::time::Duration;

use super::memory::Segment;

/// Addresses, memory and order, from a driver or a model of one.
///
/// Sizes are bytes, multiples of 2 MiB. Memory goes by the numbers that [`create`](Self::create) gave it, streams by those of their
/// heaps. A call that fails has had no effect for its caller: if a driver maps memory, then refuses the device's access and the unmapping, the
/// backend unmaps it before it maps again.
pub trait Backend {
    /// The error of a call.
    type Error;
    /// A point in a stream's work, behind all that was there when it was made.
    type Point: Debug;

    /// Whether a call failed for lack of memory.
    fn is_out_of_memory(_error: &Self::Error) -> bool {
        false
    }

    /// The bytes that are free on the device, for all its users; None if the driver does not say.
    fn left(&mut self) -> Option<usize> {
        None
    }

    /// The time since some moment that stays the same.
    fn now(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Reserves a range of addresses that nothing else has, from a multiple of 2 MiB on. None if there are not enough in a row.
    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error>;

    /// Creates physical memory. None if there is not enough.
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, Self::Error>;

    /// Maps pieces of memory of `bytes` bytes each, one behind the other, and gives the device access. Returns how many are mapped, from the
    /// first on, and why not all; none if access is refused.
    fn map(&mut self, address: u64, bytes: usize, memory: &[u64]) -> (usize, Result<(), Self::Error>);

    /// Unmaps one mapping, or several one behind the other. What used them there is done.
    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), Self::Error>;

    /// Releases memory that is mapped nowhere.
    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), Self::Error>;

    /// Makes a point behind the work of a heap's stream. None if none can be made now, because the stream captures.
    fn point(&mut self, heap: u32) -> Result<Option<Self::Point>, Self::Error>;

    /// Whether the work before a point is done.
    fn is_done(&mut self, point: &Self::Point) -> Result<bool, Self::Error>;

    /// Has later work of the stream of heap `waiter` wait for a point of another's. False if it captures.
    fn wait(&mut self, waiter: u32, of: u32, point: &Self::Point) -> Result<bool, Self::Error>;

    /// Free memory is about to leave its addresses, unless a call fails.
    fn before_leaving(&mut self, _segment: &Segment) {}

    /// Free memory came to addresses of a heap, or left them.
    fn moved(&mut self, _heap: u32, _address: u64, _bytes: usize, _came: bool) {}
}

/// A request for memory, with the rungs of its ladder: each returns whether it may have helped, or the error after which none will.
pub trait Climb {
    /// What is asked for.
    type Found;
    /// Why there is nothing.
    type Error;

    /// Takes blocks whose other streams are done, frees that other threads left, and free handles and segments that must go back to be of use.
    fn take_elsewhere(&mut self) -> Result<bool, Self::Error>;

    /// Takes freed blocks that other streams still use: their own streams wait for that on the device.
    fn take_pending(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Waits on the host for the same, and for free memory that the device still uses.
    fn wait(&mut self) -> Result<bool, Self::Error>;

    /// Rounds 1 and 2: waits for what other threads have in hand. Round 3: asks the program to free what it can. How many rungs may help then.
    fn ask_others(&mut self, _round: u32) -> usize {
        0
    }

    /// Looks for memory again. Errors are those that are no lack of memory.
    fn attempt(&mut self) -> Result<Option<Self::Found>, Self::Error>;
}

/// Climbs until there is memory, the cheapest rung first, and again whenever others help. None at the end of the ladder.
pub fn climb<C: Climb>(request: &mut C) -> Result<Option<C::Found>, C::Error> {
    let rungs = [C::take_elsewhere, C::take_pending, C::wait];
    for round in 0..4 {
        let helpful = if round == 0 { rungs.len() } else { request.ask_others(round) };
        for rung in rungs.into_iter().take(helpful) {
            if rung(request)?
                && let Some(found) = request.attempt()?
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
