//! What is tried when there is no memory: one ladder, for the default pool, private pools and replays.

/// One rung, in the order in which they are taken: the cheapest first. The host waits on the last one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Blocks whose other streams are done, frees that other threads left, and free handles that must go back to be of use.
    Elsewhere,
    /// Memory of released private pools that nothing uses.
    ReleasedPools,
    /// Freed blocks that other streams still use: their own streams wait for that on the device.
    PendingBlocks,
    /// The same, and free memory that the device still uses: the host waits.
    HostWait,
}

/// Who climbs: a request for memory. The [module](super) has an example of what it asks a source for.
pub trait Climb {
    /// What is asked for.
    type Found;
    /// Why there is nothing.
    type Error;

    /// Takes a step; whether it may have helped.
    ///
    /// # Errors
    ///
    /// Those after which nothing helps.
    fn take(&mut self, step: Step) -> Result<bool, Self::Error>;

    /// Looks for memory again.
    ///
    /// # Errors
    ///
    /// Those that are no lack of memory.
    fn attempt(&mut self) -> Result<Option<Self::Found>, Self::Error>;

    /// Asks the program to free what it can; whether it did.
    fn ask_program(&mut self) -> bool;
}

/// Climbs until there is memory, twice if the program frees some. None at the end of the ladder.
///
/// # Errors
///
/// Those of the one who climbs.
pub fn climb<C: Climb>(request: &mut C) -> Result<Option<C::Found>, C::Error> {
    const STEPS: [Step; 4] = [Step::Elsewhere, Step::ReleasedPools, Step::PendingBlocks, Step::HostWait];
    for is_second in [false, true] {
        if is_second && !request.ask_program() {
            break;
        }
        for step in STEPS {
            if request.take(step)?
                && let Some(found) = request.attempt()?
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
