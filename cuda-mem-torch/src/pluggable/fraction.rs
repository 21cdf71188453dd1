//! How much may be held, by the own allocations and private pools together.

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Device;

use super::Inner;
use crate::error::Result;
use crate::lock::read;

/// Bytes of the fraction that were set aside. They go back unless they are kept, also when a function of the program panics.
pub(super) struct Claim<'i> {
    /// None once it is kept.
    inner: Option<&'i Inner>,
    bytes: usize,
    device: Device,
}

impl Claim<'_> {
    /// There is memory for it.
    pub(super) fn keep(mut self) {
        self.inner = None;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner {
            inner.unclaim(self.bytes, self.device);
        }
    }
}

impl Inner {
    /// Sets bytes of the fraction aside, if it has as many left. The private pools have the rest.
    pub(super) fn claim(&self, bytes: usize, device: Device) -> Result<Option<Claim<'_>>> {
        let limited = read(&self.functions).memory_fraction.is_none();
        let (total, reserved) = (device.total_memory()?, self.ready(device)?.caching.reserved_bytes());
        let claimed = self.books.with(|state| {
            let of = state.of(device);
            let limit = (of.fraction * total as f64).round() as usize;
            let held = of.held.saturating_add(bytes);
            let fits = !limited || of.fraction >= 1.0 || held.saturating_add(reserved) <= limit;
            if fits {
                of.held = held;
            }
            fits
        });
        let claim = claimed.then(|| Claim { inner: Some(self), bytes, device });
        if claimed {
            self.share_fraction(device)?;
        }
        Ok(claim)
    }

    pub(super) fn unclaim(&self, bytes: usize, device: Device) {
        self.books.with(|state| {
            let held = &mut state.of(device).held;
            *held = held.saturating_sub(bytes);
        });
        // It can only leave the pools less than they may have.
        let _ = self.share_fraction(device);
    }

    /// Leaves the private pools what is left of the fraction.
    pub(super) fn share_fraction(&self, device: Device) -> Result<()> {
        let (fraction, held) = self.books.with(|state| (state.of(device).fraction, state.of(device).held));
        let cache = &self.ready(device)?.caching;
        let limited = fraction < 1.0 && read(&self.functions).memory_fraction.is_none();
        if !limited {
            if cache.memory_fraction() < 1.0 {
                cache.set_memory_fraction(1.0)?;
            }
            return Ok(());
        }
        let part = held as f64 / device.total_memory()? as f64;
        Ok(cache.set_memory_fraction((fraction - part).clamp(0.0, 1.0))?)
    }
}
