//! Host memory registered in place.
//!
//! # Safety
//!
//! Relies on [`HostMemory`]: the bytes stay where they are while their owner exists. The owner is kept in here until the
//! driver has let go of the pages, and if the driver does not, for ever: memory that is still registered is never freed.

#![allow(unsafe_code, reason = "hands out slices over registered memory")]

use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};

use bitflags::bitflags;
use cuda_mem_sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr,
};

use super::memory::{HostElements, HostMemory};
use super::options::RegisterOptions;
use super::populate::Population;
use super::registration::Registration;
use crate::driver::deferred::Release;
use crate::driver::{Context, fork, refuse_forked};
use crate::error::{Error, Refused, Result};
use crate::pointer::device_address;
use crate::stream::Stream;
use crate::uses::{Access, StreamUse, Uses};

bitflags! {
    /// How host memory is registered. [`Registered`] has an example.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct RegisterFlags: u32 {
        /// Pinned for all contexts (`CU_MEMHOSTREGISTER_PORTABLE`).
        const PORTABLE = CU_MEMHOSTREGISTER_PORTABLE;
        /// Mapped into the device's address space (`CU_MEMHOSTREGISTER_DEVICEMAP`).
        const MAPPED = CU_MEMHOSTREGISTER_DEVICEMAP;
        /// The device may only read (`CU_MEMHOSTREGISTER_READ_ONLY`). Needed for pages that may not be written. Not all devices have it.
        const READ_ONLY = CU_MEMHOSTREGISTER_READ_ONLY;
    }
}

impl Default for RegisterFlags {
    /// [`RegisterFlags::PORTABLE`], which is what PyTorch registers with.
    fn default() -> Self {
        Self::PORTABLE
    }
}

/// Smaller pieces of registered pages the driver copies with the host's own loads: up to 16 KiB it was seen to, from 32 KiB on
/// the device does it.
const LOADED_BY_THE_HOST: usize = 64 << 10;

/// Host memory that is registered where it is, with its owner.
///
/// The owner comes back from [`Registered::close`]. Dropped, it waits for the device uses it knows of, unregisters the
/// memory and drops the owner; if the driver refuses to unregister, the owner is leaked, because its pages are still pinned.
/// Memory that other processes have too ([`SharedMapping`](super::SharedMapping)) is unregistered only while no stream is busy, at
/// once or later, and a panic of its owner's drop is then swallowed: see [`Driver::registrations_left`](crate::Driver::registrations_left).
///
/// A copy must lie in one registration: the driver refuses one that runs from one into the next (seen on hardware).
///
/// ```
/// use cuda_mem_core::{Driver, host::{RegisterFlags, Registered}};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let registered = Registered::new(&context, vec![7u8; 4096], RegisterFlags::default())?;
/// assert_eq!(registered.as_slice()?[0], 7);
/// let vector = registered.close()?;
/// assert_eq!(vector.len(), 4096);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct Registered<M: HostMemory> {
    /// Taken out when the value is closed or dropped.
    parts: ManuallyDrop<Parts<M>>,
}

/// What there is to release.
struct Parts<M: HostMemory> {
    /// Not a plain `M`: moving a box would say that nobody else, such as a device, has its address.
    memory: MaybeUninit<M>,
    registration: Registration,
    context: Context,
    uses: Uses,
}

impl<M: HostMemory> Registered<M> {
    /// Registers the memory of `memory`. Nothing is done for zero bytes.
    ///
    /// Memory whose pages may not be written is registered with [`RegisterFlags::READ_ONLY`] in any case. A range that lies
    /// in another registration made through this crate, with the same flags, shares it. One that waits to be undone until no
    /// stream is busy ([`Driver::registrations_left`](crate::Driver::registrations_left)) is shared too, and is undone for one
    /// with other flags or more bytes if no stream is busy now; else this is [`Error::AlreadyRegistered`], though no owner is left.
    ///
    /// Wraps [`cuMemHostRegister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Faults in all pages that are not there
    /// yet, which takes far longer than the registration of those that are; see [`Registered::with_options`].
    ///
    /// # Errors
    ///
    /// The owner comes back with the error: [`Error::AlreadyRegistered`], [`Error::NotMapped`], [`Error::LockLimit`],
    /// [`Error::PrivateReadOnly`], [`Error::Unsupported`] for read-only memory on a device that does not take it, [`Error::Driver`] (beyond
    /// the end of its file, pages that the kernel does not let be pinned, …).
    pub fn new(context: &Context, memory: M, flags: RegisterFlags) -> Result<Self, Refused<M>> {
        Self::register(context, memory, flags, |_, _, register| register())
    }

    /// As [`Registered::new`], after several threads have brought the pages in: the same pages are ready several times as
    /// fast. Memory whose pages are all there gains nothing from it.
    ///
    /// The pages of writable memory are made ready to be written, those of other memory and of shared files to be read. That
    /// changes no byte. New pages of memory that is bound to no NUMA node come from those on which the threads run. It is one
    /// registration whatever the size, because a copy may not run from one into the next; if the range lies in another
    /// registration made through this crate, it shares that at once and brings nothing in.
    ///
    /// Wraps [`madvise`](https://man7.org/linux/man-pages/man2/madvise.2.html) with `MADV_POPULATE_WRITE` or
    /// `MADV_POPULATE_READ`, and [`cuMemHostRegister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Where Linux is older than 5.14, memory of ours is touched and that of others left to the driver.
    ///
    /// ```
    /// use cuda_mem_core::Driver;
    /// use cuda_mem_core::host::{HostMapping, MappingOptions, Pages, RegisterOptions, Registered};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let memory = HostMapping::new(100 << 20, &MappingOptions::new().pages(Pages::Transparent))?;
    /// let registered = Registered::with_options(&context, memory, &RegisterOptions::new())?;
    /// println!("{:?}", registered.memory()?.residency()?);
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Registered::new`], also for what waits to be undone; [`Error::NoPage`], [`Error::OutOfHostMemory`], [`Error::Io`], [`Error::Cancelled`]. Nothing is
    /// registered then; pages that were brought in stay.
    pub fn with_options(
        context: &Context,
        memory: M,
        options: &RegisterOptions<'_>,
    ) -> Result<Self, Refused<M>> {
        Self::register(context, memory, options.flags, |memory, flags, register| {
            Population::of(memory, flags)?.populate_and(options, register)
        })
    }

    /// Registers the memory in the call of `prepare`, which is given the step to do it.
    fn register(
        context: &Context,
        mut memory: M,
        flags: RegisterFlags,
        prepare: impl FnOnce(&mut M, RegisterFlags, &dyn Fn() -> Result<()>) -> Result<()>,
    ) -> Result<Self, Refused<M>> {
        context.driver().reclaim();
        if memory.is_shared() {
            context.driver().undo_if_idle();
        }
        let flags = if memory.is_writable() { flags } else { flags | RegisterFlags::READ_ONLY };
        if flags.contains(RegisterFlags::READ_ONLY) && memory.is_copy_on_write() {
            return Err(Refused::new(Error::PrivateReadOnly, memory));
        }
        let (start, len) = (memory.as_ptr(), memory.byte_len());
        let prepare = |register: &dyn Fn() -> Result<()>| prepare(&mut memory, flags, register);
        // SAFETY: the owner, which keeps the bytes in place, stays in the value until they are unregistered.
        match unsafe { Registration::new(context, start, len, flags, prepare) } {
            Ok(registration) => {
                let memory = MaybeUninit::new(memory);
                let parts = Parts { memory, registration, context: context.clone(), uses: Uses::default() };
                Ok(Self { parts: ManuallyDrop::new(parts) })
            }
            Err(error) => Err(Refused::new(error, memory)),
        }
    }

    /// The owner of the memory, once every device use that is known of has ended. Blocks the calling thread until then.
    pub fn memory(&self) -> Result<&M> {
        self.wait_for_uses()?;
        Ok(self.parts.memory())
    }

    /// How the memory is registered.
    #[must_use]
    pub fn flags(&self) -> RegisterFlags {
        self.parts.registration.flags()
    }

    /// The context it was registered in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.parts.context
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives the device's address of it. See
    /// [`DeviceBuffer::on`](crate::DeviceBuffer::on). Work that writes while a slice or the owner is borrowed is its author's responsibility.
    ///
    /// Wraps [`cuMemHostGetDevicePointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// As there, and [`Error::Driver`] if the device cannot reach the memory.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        let parts = &*self.parts;
        parts.context.driver().expect_same(stream.driver(), "the stream")?;
        let memory = parts.memory();
        let address =
            if memory.byte_len() > 0 { device_address(stream.context(), memory.as_ptr())? } else { 0 };
        memory.order_behind_uses(stream)?;
        StreamUse::begin(address, &parts.uses, stream, Access::Write)
    }

    /// Where the device of its context finds the memory; 0 if it has no bytes. Work that is put into a stream by this address
    /// is not known here: [`Registered::on`], or [`Registered::absorb_uses`].
    ///
    /// Wraps [`cuMemHostGetDevicePointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the device cannot reach the memory.
    pub fn device_address(&self) -> Result<CUdeviceptr> {
        let memory = self.parts.memory();
        if memory.byte_len() == 0 { Ok(0) } else { device_address(&self.parts.context, memory.as_ptr()) }
    }

    pub(crate) fn uses(&self) -> &Uses {
        &self.parts.uses
    }

    pub(crate) fn uses_mut(&mut self) -> &mut Uses {
        &mut self.parts.uses
    }

    /// Takes over the uses of a part of the memory, whose own owner is gone: the release waits for them too.
    pub fn absorb_uses(&self, uses: Uses) {
        self.parts.uses.absorb(uses);
    }

    /// Whether no use of the memory runs any more that it knows of, so that its end waits for none: [`Uses::have_passed`]. Errors: as there.
    pub fn have_uses_passed(&mut self) -> Result<bool> {
        self.parts.uses.have_passed()
    }

    /// Unregisters the memory and gives its owner back. Waits for the device uses that it knows of, and the driver for all work of the context.
    ///
    /// Wraps [`cuMemHostUnregister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), for the last who shares the
    /// registration. The value comes back with the error, still registered.
    pub fn close(mut self) -> Result<M, Refused<Self>> {
        if let Err(error) = self.parts.unregister(true) {
            return Err(Refused::new(error, self));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used again: the parts are taken once.
        let parts = unsafe { ManuallyDrop::take(&mut this.parts) };
        // SAFETY: initialised in `new`, and moved out once: the parts leave the drop of the memory to their owner.
        Ok(unsafe { parts.memory.assume_init() })
    }
}

impl<M: HostMemory> Parts<M> {
    fn memory(&self) -> &M {
        // SAFETY: initialised in `Registered::new`, and moved out or dropped only where the parts end.
        unsafe { self.memory.assume_init_ref() }
    }

    fn unregister(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        self.uses.settle(waits)?;
        self.context.driver().free(waits, || self.registration.release())
    }
}

impl<M: HostMemory> Release for Parts<M> {
    fn release(&mut self, waits: bool) -> Result<()> {
        self.unregister(waits)?;
        // SAFETY: initialised in `Registered::new` and dropped once: a release is repeated only after an error.
        unsafe { self.memory.assume_init_drop() };
        Ok(())
    }
}

/// Memory that other processes have too, until its uses are over.
struct Shared<M: HostMemory>(Option<Parts<M>>);

impl<M: HostMemory> Release for Shared<M> {
    fn release(&mut self, waits: bool) -> Result<()> {
        refuse_forked()?;
        if let Some(parts) = &mut self.0 {
            parts.uses.settle(waits)?;
        }
        if let Some(mut parts) = self.0.take() {
            // What waits keeps no stream.
            parts.uses = Uses::default();
            parts.context.driver().release_when_idle(WhenIdle { parts, is_unregistered: false });
        }
        Ok(())
    }
}

/// What is unregistered only while no stream is busy.
struct WhenIdle<M: HostMemory> {
    parts: Parts<M>,
    is_unregistered: bool,
}

impl<M: HostMemory> Release for WhenIdle<M> {
    fn release(&mut self, _waits: bool) -> Result<()> {
        self.parts.registration.release()?;
        self.is_unregistered = true;
        Ok(())
    }
}

impl<M: HostMemory> Drop for WhenIdle<M> {
    fn drop(&mut self) {
        if self.is_unregistered {
            // SAFETY: initialised in `Registered::new` and dropped once: the parts are this value's alone.
            unsafe { self.parts.memory.assume_init_drop() };
        }
    }
}

impl<M: HostElements> Registered<M> {
    /// The elements, once every device use that is known of has ended. Errors: as [`Registered::memory`].
    pub fn as_slice(&self) -> Result<&[M::Element]> {
        let memory = self.memory()?;
        let len = memory.byte_len().checked_div(size_of::<M::Element>()).unwrap_or(0);
        // SAFETY: `HostElements` vouches for initialised elements at this address; no device writes them now, and no safe
        // operation can make one start while this borrow lives.
        Ok(unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<M::Element>(), len) })
    }

    /// The elements, to change, once every device use that is known of has ended. Errors: as [`Registered::memory`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [M::Element]> {
        self.wait_for_uses()?;
        // SAFETY: initialised in `new`; the parts are here, so it was not moved out.
        let memory = unsafe { self.parts.memory.assume_init_mut() };
        let len = memory.byte_len().checked_div(size_of::<M::Element>()).unwrap_or(0);
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference, and the owner itself stays untouched.
        Ok(unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), len) })
    }
}

// SAFETY: the owner's memory, and the owner stays in the value unchanged. What a device writes into it goes through `&mut`
// of this value or through its use set or its owner's, which every way to the bytes waits for.
unsafe impl<M: HostMemory> HostMemory for Registered<M> {
    fn as_ptr(&self) -> *const u8 {
        self.parts.memory().as_ptr()
    }

    fn byte_len(&self) -> usize {
        self.parts.memory().byte_len()
    }

    fn is_writable(&self) -> bool {
        self.parts.memory().is_writable() && !self.flags().contains(RegisterFlags::READ_ONLY)
    }

    fn file(&self) -> Option<(&File, usize)> {
        let memory = self.parts.memory();
        // Registering a private mapping has copied its pages: they are the process's own.
        memory.file().filter(|_| !memory.is_copy_on_write()).map(|(file, _)| (file, LOADED_BY_THE_HOST))
    }

    fn is_copy_on_write(&self) -> bool {
        self.parts.memory().is_copy_on_write()
    }

    fn order_behind_uses(&self, stream: &Stream) -> Result<()> {
        self.parts.memory().order_behind_uses(stream)?;
        self.parts.uses.order(stream)
    }

    fn wait_for_uses(&self) -> Result<()> {
        self.parts.uses.wait()?;
        // The owner may have uses of its own, and get more of them where it is lent.
        self.parts.memory().wait_for_uses()
    }
}

// SAFETY: the owner's elements, and the owner stays in the value unchanged.
unsafe impl<M: HostElements> HostElements for Registered<M> {
    type Element = M::Element;

    fn as_mut_ptr(&mut self) -> *mut M::Element {
        // SAFETY: initialised in `new`; the parts are here, so it was not moved out.
        unsafe { self.parts.memory.assume_init_mut() }.as_mut_ptr()
    }
}

impl<M: HostMemory> Drop for Registered<M> {
    fn drop(&mut self) {
        // SAFETY: taken once; the value is not used after its drop.
        let mut parts = unsafe { ManuallyDrop::take(&mut self.parts) };
        if fork::forked() {
            // The child's copy of the memory was never registered.
            // SAFETY: initialised in `new`, dropped once.
            unsafe { parts.memory.assume_init_drop() };
            return;
        }
        let driver = parts.context.driver();
        if parts.memory().is_shared() {
            driver.release_or_defer(Shared(Some(parts)));
        } else {
            driver.release_or_defer(parts);
        }
    }
}

impl_debug!([M: HostMemory] Registered<M>, |it| address: it.as_ptr(), bytes: it.byte_len(), flags: it.flags());
