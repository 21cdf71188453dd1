//! Where the page source gets memory, the order of what uses it, and who is told of changes.

/// Addresses, memory and order, from a driver or a model of one. Sizes are bytes, multiples of 2 MiB; memory goes by the numbers
/// that [`create`](Self::create) gave it, streams by those of their heaps.
///
/// A call that fails has done nothing that its caller has to know of: where a driver maps memory, does not let the device in and does not
/// unmap it either, the backend sees to it before it maps again. Its error ends the growth as
/// [`GrowError::Backend`](super::GrowError::Backend). The [module](super) has an example.
pub trait Backend {
    /// What a call says that failed.
    type Error;
    /// A point in a stream's work, behind all that was there when it was made.
    type Mark;

    /// A range of addresses that nothing else has, from a multiple of 2 MiB on; None if there are not enough in a row.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error>;

    /// Physical memory; None if there is not enough.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, Self::Error>;

    /// Puts memory at an address, for the device to read and write.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn map(&mut self, address: u64, bytes: usize, memory: u64) -> Result<(), Self::Error>;

    /// As [`Backend::map`], of several pieces of memory, each with its bytes and number, one behind the other: a driver needs one call
    /// to let the device in, whatever there is. How many are mapped, from the first on, and why not all; none if the device is not let in.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn map_row(&mut self, address: u64, row: &[(usize, u64)]) -> (usize, Result<(), Self::Error>) {
        let mut end = address;
        for (done, (bytes, memory)) in row.iter().enumerate() {
            if let Err(error) = self.map(end, *bytes, *memory) {
                return (done, Err(error));
            }
            end += *bytes as u64;
        }
        (row.len(), Ok(()))
    }

    /// Takes the memory away from addresses: of one mapping, or of several, one behind the other. What used them there is done.
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

    /// A point behind the work of a heap's stream; None if none can be made now, because the stream captures.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn mark(&mut self, heap: u32) -> Result<Option<Self::Mark>, Self::Error>;

    /// Whether the work before a point is done.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn is_done(&mut self, mark: &Self::Mark) -> Result<bool, Self::Error>;

    /// Lets the work that the stream of heap `waiter` is given from now on wait for a point of another's. False if it cannot
    /// now, because the stream captures.
    ///
    /// # Errors
    ///
    /// Those of the driver or of the model.
    fn wait(&mut self, waiter: u32, of: u32, mark: &Self::Mark) -> Result<bool, Self::Error>;

    /// Free memory is about to leave addresses. Whether it does is not certain yet: calls may fail.
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
