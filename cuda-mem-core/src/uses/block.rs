//! Memory that goes back by a call that no stream orders, once nothing uses it any more.
//!
//! # Safety
//!
//! Relies on the contract of [`Block::new`], and on every use of the memory being in its [`Uses`] or borrowing its owner.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ptr;

use cuda_mem_sys::CUdeviceptr;

use super::Uses;
use crate::driver::deferred::{Guards, Held, Owned, Release};
use crate::driver::{Context, Driver, refuse_forked};
use crate::error::{Result, call};

/// What takes memory back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Free {
    /// `cuMemFree`.
    Device,
    /// `cuMemFreeHost`.
    Host,
    /// `cuIpcCloseMemHandle`.
    Opened,
}

/// Memory without its type: what there is to give back.
#[derive(Debug)]
pub(crate) struct Block {
    /// 0 if there are no bytes, and when it went back.
    pub(crate) address: CUdeviceptr,
    pub(crate) context: Context,
    pub(crate) uses: Uses,
    /// Dropped behind the memory.
    pub(crate) guards: Guards,
    free: Free,
}

impl Block {
    /// # Safety
    ///
    /// What is at `address`, if that is not 0, came from the context, goes back by `free`, and is given back by nobody else.
    pub(crate) unsafe fn new(address: CUdeviceptr, context: &Context, free: Free) -> Owned<Self> {
        let (context, uses, guards) = (context.clone(), Uses::new(), Guards::default());
        Owned::new(Self { address, context, uses, guards, free })
    }
}

impl Held for Block {
    fn driver(&self) -> Driver {
        self.context.driver()
    }

    fn is_released(&self) -> bool {
        self.address == 0
    }
}

impl Release for Block {
    fn release(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        if self.address == 0 {
            return Ok(());
        }
        self.uses.settle(waits)?;
        let (_relaxed, _bound) = self.context.bind_relaxed()?;
        let driver = self.context.driver();
        driver.free(waits, || match self.free {
            // SAFETY: memory that this value owns, given back once; no use of it runs any more. The context is current.
            Free::Device => unsafe { call!(driver, cuMemFree(self.address)) },
            Free::Host => {
                let address = ptr::with_exposed_provenance_mut(self.address as usize);
                // SAFETY: as above.
                unsafe { call!(driver, cuMemFreeHost(address)) }
            }
            // SAFETY: as above: closed as often as it was opened by this value.
            Free::Opened => unsafe { call!(driver, cuIpcCloseMemHandle(self.address)) },
        })?;
        self.address = 0;
        Ok(())
    }
}
