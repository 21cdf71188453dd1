//! What a driver says of a device once and for all, so that it is asked once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cuda_mem_sys::CUdevice;

use crate::error::Result;

/// Of all devices of a driver.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(crate) uuid: Constant<[u8; 16]>,
    /// The smallest piece of physical memory.
    pub(crate) granularity: Constant<usize>,
}

/// By device.
#[derive(Debug, Default)]
pub(crate) struct Constant<T>(Mutex<BTreeMap<CUdevice, T>>);

impl<T: Copy> Constant<T> {
    /// What is known, or else what `ask` is told. Of two threads that come first at once both ask.
    pub(crate) fn get(&self, device: CUdevice, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known().get(&device) {
            return Ok(*value);
        }
        let value = ask()?;
        known().insert(device, value);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn what_was_told_is_not_asked_again_and_a_failure_is_not_kept() {
        let constant = Constant::default();
        assert!(constant.get(1, || Err(Error::Forked)).is_err());
        assert_eq!(constant.get(1, || Ok(7)).unwrap(), 7);
        assert_eq!(constant.get(1, || Err(Error::Forked)).unwrap(), 7);
        assert_eq!(constant.get(2, || Ok(8)).unwrap(), 8);
    }
}
