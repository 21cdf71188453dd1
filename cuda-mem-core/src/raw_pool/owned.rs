//! Who destroys a pool: the last of those that were given it.
//!
//! The driver gives a process that imports a pool twice the same pool, and the first destruction takes it from both (seen on
//! hardware: the second one is told that there is no such pool).

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::driver::Driver;
use crate::error::Result;

/// A pool by its driver and its handle's address.
type Name = (Driver, usize);

/// How many own each pool of this process.
static OWNERS: LazyLock<Mutex<HashMap<Name, usize>>> = LazyLock::new(Mutex::default);

/// Makes a pool. Whatever had its name before is gone, also if others destroyed it.
pub(super) fn created(driver: Driver, create: impl FnOnce() -> Result<usize>) -> Result<()> {
    let mut owners = owners();
    let pool = create()?;
    owners.insert((driver, pool), 1);
    Ok(())
}

/// Imports a pool, with nobody destroying it before it is counted.
pub(super) fn imported(driver: Driver, import: impl FnOnce() -> Result<usize>) -> Result<()> {
    let mut owners = owners();
    let pool = import()?;
    let count = owners.entry((driver, pool)).or_default();
    *count = count.saturating_add(1);
    Ok(())
}

/// Asks for a pool that somebody has, with nobody destroying it before it is counted: whether it was made or imported here.
pub(super) fn given(driver: Driver, get: impl FnOnce() -> Result<usize>) -> Result<bool> {
    let mut owners = owners();
    let pool = get()?;
    let count = owners.get_mut(&(driver, pool));
    let is_ours = count.is_some();
    if let Some(count) = count {
        *count = count.saturating_add(1);
    }
    Ok(is_ours)
}

/// Lets one owner go; the last one's end is `destroy`. If that fails, it stays an owner.
pub(super) fn let_go(driver: Driver, pool: usize, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut owners = owners();
    if let Some(count) = owners.get_mut(&(driver, pool))
        && *count > 1
    {
        *count -= 1;
        return Ok(());
    }
    // With nobody importing it anew meanwhile.
    destroy()?;
    owners.remove(&(driver, pool));
    Ok(())
}

/// Takes a share away whose owner is gone though the driver did not destroy the pool.
pub(super) fn abandon(driver: Driver, pool: usize) {
    let mut owners = owners();
    if let Some(count) = owners.get_mut(&(driver, pool)) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            owners.remove(&(driver, pool));
        }
    }
}

fn owners() -> MutexGuard<'static, HashMap<Name, usize>> {
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}
