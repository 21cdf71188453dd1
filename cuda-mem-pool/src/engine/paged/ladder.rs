//! What is tried when there is no memory: one ladder, for the default pool, private pools and replays.

/// A request for memory, with the rungs of its ladder: each says whether it may have helped, or why nothing will.
#[doc(hidden)]
pub trait Climb {
    /// What is asked for.
    type Found;
    /// Why there is nothing.
    type Error;

    /// Takes blocks whose other streams are done, frees that other threads left, and free handles that must go back to be of use.
    fn take_elsewhere(&mut self) -> Result<bool, Self::Error>;

    /// Takes memory of released private pools that nothing uses.
    fn take_released_pools(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Takes freed blocks that other streams still use: their own streams wait for that on the device.
    fn take_pending(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Takes the same, and free memory that the device still uses: the host waits.
    fn wait(&mut self) -> Result<bool, Self::Error>;

    /// Asks the program to free what it can; whether it did.
    fn ask_program(&mut self) -> bool {
        false
    }

    /// Looks for memory again. Errors are those that are no lack of memory.
    fn attempt(&mut self) -> Result<Option<Self::Found>, Self::Error>;
}

/// Climbs until there is memory, the cheapest rung first, twice if the program frees some. None at the end of the ladder.
#[doc(hidden)]
pub fn climb<C: Climb>(request: &mut C) -> Result<Option<C::Found>, C::Error> {
    let rungs = [C::take_elsewhere, C::take_released_pools, C::take_pending, C::wait];
    for is_second in [false, true] {
        if is_second && !request.ask_program() {
            break;
        }
        for rung in rungs {
            if rung(request)?
                && let Some(found) = request.attempt()?
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
