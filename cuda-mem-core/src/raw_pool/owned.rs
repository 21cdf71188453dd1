//! Who destroys a pool: the last of those that were given it.
//!
//! The driver gives a process that imports a pool twice the same pool, and the first destruction takes it from both (seen on
//! hardware: the second one is told that there is no such pool).

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use super::{AllocationType, MemoryLocation};
use crate::driver::{Driver, lock};
use crate::error::Result;

/// A pool by its driver and its handle's address.
type Name = (Driver, usize);

/// Where a pool was made current: only where it lies can it be.
pub(super) type Place = (MemoryLocation, AllocationType);

#[derive(Default)]
struct Owned {
    /// How many own it.
    count: usize,
    made_current: Option<Place>,
}

/// The pools of this process.
static OWNERS: LazyLock<Mutex<HashMap<Name, Owned>>> = LazyLock::new(Mutex::default);

/// Makes a pool. Whatever had its name before is gone, also if others destroyed it.
pub(super) fn created(driver: Driver, create: impl FnOnce() -> Result<usize>) -> Result<()> {
    let mut owners = lock(&OWNERS);
    let pool = create()?;
    owners.insert((driver, pool), Owned { count: 1, made_current: None });
    Ok(())
}

/// Imports a pool, with nobody destroying it before it is counted.
pub(super) fn imported(driver: Driver, import: impl FnOnce() -> Result<usize>) -> Result<()> {
    let mut owners = lock(&OWNERS);
    let pool = import()?;
    let owned = owners.entry((driver, pool)).or_default();
    owned.count = owned.count.saturating_add(1);
    Ok(())
}

/// Asks for a pool that somebody has, with nobody destroying it before it is counted: whether it was made or imported here.
pub(super) fn given(driver: Driver, get: impl FnOnce() -> Result<usize>) -> Result<bool> {
    let mut owners = lock(&OWNERS);
    let pool = get()?;
    let owned = owners.get_mut(&(driver, pool));
    let is_ours = owned.is_some();
    if let Some(owned) = owned {
        owned.count = owned.count.saturating_add(1);
    }
    Ok(is_ours)
}

/// Makes a pool the current one of a place.
pub(super) fn made_current(
    driver: Driver,
    pool: usize,
    place: Place,
    set: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut owners = lock(&OWNERS);
    set()?;
    if let Some(owned) = owners.get_mut(&(driver, pool)) {
        owned.made_current = Some(place);
    }
    Ok(())
}

/// Lets one owner go; the last one's end is `destroy`, which is told where the pool was made current. If that fails, it stays an owner.
pub(super) fn let_go(
    driver: Driver,
    pool: usize,
    destroy: impl FnOnce(Option<Place>) -> Result<()>,
) -> Result<()> {
    let mut owners = lock(&OWNERS);
    let mut place = None;
    if let Some(owned) = owners.get_mut(&(driver, pool)) {
        if owned.count > 1 {
            owned.count -= 1;
            return Ok(());
        }
        place = owned.made_current;
    }
    // With nobody importing it anew meanwhile.
    destroy(place)?;
    owners.remove(&(driver, pool));
    Ok(())
}

/// Takes a share away whose owner is gone though the driver did not destroy the pool.
pub(super) fn abandon(driver: Driver, pool: usize) {
    let mut owners = lock(&OWNERS);
    if let Some(owned) = owners.get_mut(&(driver, pool)) {
        owned.count = owned.count.saturating_sub(1);
        if owned.count == 0 {
            owners.remove(&(driver, pool));
        }
    }
}
