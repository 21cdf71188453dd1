//! Where the page source gets memory, how it orders streams, and who hears of changes.

use std::time::Duration;

/// Addresses, memory and order, from a driver or a model of one.
///
/// Sizes are bytes, multiples of 2 MiB. Memory goes by the numbers that [`create`](Self::create) gave it, streams by those of their
/// heaps. A call that fails has done nothing that its caller has to know of: where a driver maps memory, does not let the device in and does
/// not unmap it either, the backend sees to it before it maps again. The [module](super) has an example.
pub trait Backend {
    /// What a call says that failed.
    type Error;
    /// A point in a stream's work, behind all that was there when it was made.
    type Point;

    /// Whether a call failed for lack of memory.
    fn is_out_of_memory(_error: &Self::Error) -> bool {
        false
    }

    /// The bytes that are free on the device, for everybody; None where nobody knows.
    fn left(&mut self) -> Option<usize> {
        None
    }

    /// The time since some moment that stays the same.
    fn now(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Reserves a range of addresses that nothing else has, from a multiple of 2 MiB on. None if there are not enough in a row.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error>;

    /// Creates physical memory. None if there is not enough.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, Self::Error>;

    /// Maps pieces of memory of `bytes` bytes each, one behind the other, and lets the device in. How many are mapped, from the first on,
    /// and why not all; none if the device is not let in.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn map(&mut self, address: u64, bytes: usize, memory: &[u64]) -> (usize, Result<(), Self::Error>);

    /// Unmaps one mapping, or several one behind the other. What used them there is done.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), Self::Error>;

    /// Gives memory back that is nowhere mapped.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), Self::Error>;

    /// Makes a point behind the work of a heap's stream. None if none can be made now, because the stream captures.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn point(&mut self, heap: u32) -> Result<Option<Self::Point>, Self::Error>;

    /// Whether the work before a point is done.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn is_done(&mut self, point: &Self::Point) -> Result<bool, Self::Error>;

    /// Has the work that the stream of heap `waiter` is given from now on wait for a point of another's. False if it cannot now, because
    /// the stream captures.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn wait(&mut self, waiter: u32, of: u32, point: &Self::Point) -> Result<bool, Self::Error>;

    /// Free memory is about to leave addresses. Calls may still fail, and then it stays.
    fn before(&mut self, _change: Change) {}
}

/// Memory leaves addresses: they will be without, or have other memory. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which handle.
    pub id: u64,
    /// Where it is mapped.
    pub address: u64,
    /// How much of it.
    pub bytes: usize,
}
