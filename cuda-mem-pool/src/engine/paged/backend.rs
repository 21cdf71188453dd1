//! Where the page source gets memory, and the order of what uses it.

/// Addresses, memory and order, from a driver or a model of one. Sizes are multiples of the page.
///
/// A call that fails has done nothing.
pub(crate) trait Backend {
    type Error;
    /// A point in a stream's work, behind all that was there when it was made.
    type Mark;

    /// A range of addresses that nothing else has.
    fn reserve(&mut self, bytes: u64) -> Result<u64, Self::Error>;

    /// Physical memory; None if there is not enough.
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, Self::Error>;

    /// Puts memory at an address, for the device to read and write.
    fn map(&mut self, address: u64, bytes: usize, memory: u64) -> Result<(), Self::Error>;

    /// Takes the memory away from an address. What used it there is done.
    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), Self::Error>;

    /// Gives memory back that is nowhere mapped.
    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), Self::Error>;

    /// A point behind the work of a heap's stream; None if none can be made now, because the stream captures.
    fn mark(&mut self, heap: u32) -> Result<Option<Self::Mark>, Self::Error>;

    /// Whether the work before a point is done.
    fn is_done(&mut self, mark: &Self::Mark) -> Result<bool, Self::Error>;

    /// Lets the work that the stream of heap `waiter` is given from now on wait for a point of another's. False if it cannot
    /// now, because the stream captures.
    fn wait(&mut self, waiter: u32, of: u32, mark: &Self::Mark) -> Result<bool, Self::Error>;
}
