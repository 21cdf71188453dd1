//! Device addresses, and the memory behind them.
//!
//! A device address is an address of this process that nothing else can ever use: regions of the address space are
//! reserved without access, so a host that follows a device pointer gets a fault, as on real hardware, and one address
//! means one thing on the host and on all devices.
//!
//! Behind each region stands a *shadow* of the same size, where the simulator alone reads and writes. Address and shadow
//! differ by one constant, so a range of device memory is always one range in the shadow, whatever is mapped where. The
//! shadow's pages come from a sparse memory file; mapping memory at a device address means mapping its file over the
//! shadow. Memory that the host may touch (host allocations, host pools) is mapped at its own address as well.
//!
//! # Safety
//!
//! Every address that is mapped over lies in a region or a shadow, both of which were reserved here for that purpose and
//! are given back only when the driver is gone. Shadows stay mapped from end to end for that long, whatever is mapped
//! where, so a copy that is under way in one never faults.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::os::{self, Protection};
use super::ranges::Ranges;

/// The usual size of a region; a larger request gets a region of its own.
const REGION: u64 = 32 << 30;

/// A region that is larger was made for one reservation and goes with it.
const LARGEST_KEPT: u64 = 1 << 40;

/// How much of a region may wait in quarantine.
const KEEP: u64 = REGION / 8;

/// What device addresses and their ranges are multiples of where memory is mapped.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;

/// The device addresses of one simulated driver.
#[derive(Debug)]
pub(crate) struct Space {
    regions: Vec<Region>,
    /// Whether memory has bytes. Without them only addresses are kept, so any amount of memory can be simulated.
    has_data: bool,
}

#[derive(Debug)]
struct Region {
    base: u64,
    len: u64,
    ranges: Ranges,
    store: Option<Store>,
    /// What the region is a part of: reserved a little larger, so that its base can be aligned.
    reserved: (usize, usize),
}

/// The bytes of a region.
#[derive(Debug)]
struct Store {
    shadow: usize,
    len: usize,
    file: OwnedFd,
}

impl Space {
    pub(crate) fn new(has_data: bool) -> Self {
        Self { regions: Vec::new(), has_data }
    }

    /// Whether memory has bytes.
    pub(crate) fn has_data(&self) -> bool {
        self.has_data
    }

    /// Takes `len` addresses that start at a multiple of `align`, a power of two; at `hint` if that is possible.
    pub(crate) fn take(&mut self, len: u64, align: u64, hint: Option<u64>) -> io::Result<u64> {
        if let Some(hint) = hint
            && hint.is_multiple_of(align)
            && self.regions.iter_mut().any(|region| region.ranges.take_at(hint, len))
        {
            return Ok(hint);
        }
        if let Some(start) = self.regions.iter_mut().find_map(|region| region.ranges.take(len, align)) {
            return Ok(start);
        }
        let room = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut region = Region::new(room.max(REGION), self.has_data)?;
        let start = region.ranges.take(len, align);
        self.regions.push(region);
        start.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Gives addresses back. Their memory goes back to the system, and the host can no longer reach it.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) {
        let Some(region) = self.region_mut(start) else { return };
        let page = os::page_size() as u64;
        // Pages at the ends may hold parts of neighbours.
        let (first, end) = (start.next_multiple_of(page), (start + len) / page * page);
        if let Some(store) = &region.store
            && first < end
        {
            os::punch(store.file.as_fd(), first - region.base, end - first);
        }
        region.ranges.give_back(start, len);
        // The address space has room for only a few such regions.
        self.regions.retain(|region| region.len <= LARGEST_KEPT || !region.ranges.is_unused());
    }

    /// Whether an address is one of these, taken or not.
    pub(crate) fn owns(&self, at: u64) -> bool {
        self.region(at).is_some()
    }

    /// Where the simulator finds the bytes of `start .. start + len`; none in another region or without data.
    pub(crate) fn shadow(&self, start: u64, len: u64) -> Option<*mut u8> {
        let region = self.region(start)?;
        let store = region.store.as_ref()?;
        let offset = start - region.base;
        (len <= region.len - offset)
            .then(|| std::ptr::with_exposed_provenance_mut(store.shadow + offset as usize))
    }

    /// The file and offset behind addresses, to map the same memory at other addresses too.
    pub(crate) fn source(&self, start: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let region = self.region(start)?;
        Some((region.store.as_ref()?.file.as_fd(), start - region.base))
    }

    /// Lets the host read, and if `write` also write, whole pages at their own addresses.
    pub(crate) fn show(&self, start: u64, len: u64, write: bool) -> io::Result<()> {
        let Some((file, offset)) = self.source(start) else { return Ok(()) };
        self.show_file(start, len, write, file, offset)
    }

    /// As [`show`](Self::show), where the addresses hold the memory of another file.
    pub(crate) fn show_file(
        &self,
        start: u64,
        len: u64,
        write: bool,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        let protection = if write { Protection::ReadWrite } else { Protection::Read };
        // SAFETY: the caller took these addresses from this space: they lie in a region, which was reserved for it.
        unsafe { os::map_over(start as usize, len as usize, file, offset, protection) }
    }

    /// Takes whole pages away from the host again.
    pub(crate) fn hide(&self, start: u64, len: u64) {
        if self.region(start).is_some() {
            // SAFETY: addresses of a region. A host that still uses the pages gets a fault, as it does on real hardware
            // after it freed them; the simulator itself works in the shadow. On failure they only stay readable.
            let _ = unsafe { os::close_over(start as usize, len as usize) };
        }
    }

    /// Puts the memory of another file behind addresses that were taken.
    pub(crate) fn attach(&self, start: u64, len: u64, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let Some(at) = self.shadow(start, len) else { return Ok(()) };
        let at = at.expose_provenance();
        // SAFETY: the shadow was reserved with its region; workers only copy bytes through raw pointers there.
        unsafe { os::map_over(at, len as usize, file, offset, Protection::ReadWrite) }?;
        os::keep_from_children(at, len as usize);
        Ok(())
    }

    /// Puts the region's own memory back behind addresses.
    pub(crate) fn detach(&self, start: u64, len: u64) {
        if let Some((file, offset)) = self.source(start) {
            // A failure leaves the other file's pages there, which no address leads to any more.
            let _ = self.attach(start, len, file, offset);
        }
    }

    fn region(&self, at: u64) -> Option<&Region> {
        self.regions.iter().find(|region| at >= region.base && at - region.base < region.len)
    }

    fn region_mut(&mut self, at: u64) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| at >= region.base && at - region.base < region.len)
    }
}

impl Region {
    fn new(room: u64, has_data: bool) -> io::Result<Self> {
        let len = room.checked_next_multiple_of(LARGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let room_to_align = size.checked_add(LARGE_PAGE as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = (os::reserve(room_to_align)?, room_to_align);
        let base = (reserved.0 as u64).next_multiple_of(LARGE_PAGE);
        let mut region = Self { base, len, ranges: Ranges::new(base, len, KEEP), store: None, reserved };
        if has_data {
            region.store = Some(Store::new(size)?);
        }
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the reservation made in `new`; the driver that gave its addresses out is gone.
        unsafe { os::unreserve(self.reserved.0, self.reserved.1) };
    }
}

impl Store {
    fn new(len: usize) -> io::Result<Self> {
        let file = os::memory_file(c"cuda-mem-sim:device", len as u64)?;
        let store = Self { shadow: os::reserve(len)?, len, file };
        // SAFETY: the reservation made one line above.
        unsafe { os::map_over(store.shadow, len, store.file.as_fd(), 0, Protection::ReadWrite) }?;
        os::keep_from_children(store.shadow, len);
        Ok(store)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the reservation made in `new`; the workers that copied there are gone.
        unsafe { os::unreserve(self.shadow, self.len) };
    }
}
