//! The page source's backend over the driver.
//!
//! # Safety
//!
//! Relies on the page source's word about what it unmaps: the work that used a mapping is done.

#![allow(unsafe_code, reason = "unmaps memory, and keeps handles as the numbers that the page source knows")]

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::sys::{CUdevice_attribute, CUdeviceptr, CUresult};
use cuda_mem_core::vmm::{Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Context, Device, Error, Event, Result};

use super::callbacks::{CallWatch, DriverCall, List, Watcher};
use super::figures::Figures;
use super::owner::End;
use super::record::{Record, event};
use super::slot::{Slots, StreamSlot};
use crate::engine::paged::{Backend, SLAB, Segment};
use crate::mempool_id::MempoolId;
use crate::snapshot::Action;
use crate::statistics::PoolSize;

/// Memory of a device by the calls for virtual memory management.
#[derive(Debug)]
pub(super) struct Vmm {
    context: Context,
    options: CreateOptions,
    /// Devices that reach the memory: its own, and peers that were let in.
    pub(super) reached_by: Vec<Device>,
    ranges: BTreeMap<CUdeviceptr, AddressRange>,
    /// Mappings without access, which the driver refused, as it refused to unmap them.
    shut: Vec<(CUdeviceptr, usize)>,
    slots: Arc<Slots>,
    watchers: Arc<List<Watcher>>,
    begun: Instant,
    figures: Arc<Figures>,
    record: Arc<Record>,
    observer: CallWatch,
}

impl Vmm {
    pub(super) fn new(
        context: &Context,
        slots: Arc<Slots>,
        figures: Arc<Figures>,
        record: Arc<Record>,
        observer: CallWatch,
        watchers: Arc<List<Watcher>>,
    ) -> Result<Self> {
        let device = context.device();
        Ok(Self {
            context: context.clone(),
            options: CreateOptions::supported_by(device)?,
            reached_by: vec![device],
            ranges: BTreeMap::new(),
            shut: Vec::new(),
            slots,
            watchers,
            begun: Instant::now(),
            figures,
            record,
            observer,
        })
    }

    pub(super) fn set_access(&self, devices: &[Device], address: CUdeviceptr, bytes: usize) -> Result<()> {
        let (offset, range) = self.range(address)?;
        self.observer.watch(
            || range.set_access(offset, bytes, devices, Access::ReadWrite),
            |()| DriverCall::SetAccess { address, bytes: bytes as u64 },
        )
    }

    pub(super) fn export(&self, memory: u64, bytes: usize) -> Result<OwnedFd> {
        self.handle(memory, bytes).export_posix_fd()
    }

    fn range(&self, address: CUdeviceptr) -> Result<(usize, &AddressRange)> {
        let below = self.ranges.range(..=address).next_back();
        let (start, range) = below.ok_or(Error::NotAllocated { address })?;
        Ok(((address - start) as usize, range))
    }

    /// Unmaps the mappings without access, as far as the driver lets it.
    pub(super) fn unmap_shut(&mut self) {
        let mut shut = std::mem::take(&mut self.shut);
        shut.retain(|(address, bytes)| self.unmap(*address, *bytes).is_err());
        self.shut = shut;
    }

    /// The handle of a number, not to be given back here.
    fn handle(&self, memory: u64, bytes: usize) -> ManuallyDrop<PhysicalMemory> {
        // SAFETY: numbers come from `create`, which took them out of their owner, with their size; never dropped, it is
        // given back by `release` alone.
        ManuallyDrop::new(unsafe { PhysicalMemory::from_raw(self.context.driver(), memory, bytes) })
    }
}

impl Backend for Vmm {
    type Error = Error;
    type Point = Arc<Event>;

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::TooLarge { count: usize::MAX, size: 1 })?;
        let reserved = self.observer.watch(
            || AddressRange::reserve(self.context.device(), bytes, SLAB),
            |range| DriverCall::Reserve { address: range.address(), bytes: bytes as u64 },
        );
        let range = match reserved {
            Err(error) if Self::is_out_of_memory(&error) => return Ok(None),
            reserved => reserved?,
        };
        let address = range.address();
        self.ranges.insert(address, range);
        Ok(Some(address))
    }

    fn create(&mut self, bytes: usize) -> Result<Option<u64>> {
        let (device, options) = (self.context.device(), &self.options);
        let made = self.observer.watch(
            || match PhysicalMemory::create(device, bytes, options) {
                Ok(memory) => Ok(Some(memory.into_raw())),
                Err(error) if Self::is_out_of_memory(&error) => Ok(None),
                Err(error) => Err(error),
            },
            |memory| DriverCall::Create { memory: *memory, bytes: bytes as u64 },
        )?;
        if made.is_some() {
            // Each may serve blocks of all sizes: the slabs for small ones are counted when figures are read.
            self.figures.add_segment(MempoolId::NONE, PoolSize::Large, bytes as u64);
        }
        Ok(made)
    }

    fn is_out_of_memory(error: &Error) -> bool {
        matches!(error, Error::Driver(error) if error.code() == CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn left(&mut self) -> Option<usize> {
        self.unmap_shut();
        self.context.memory_info().ok().map(|memory| memory.free)
    }

    fn now(&mut self) -> Duration {
        self.begun.elapsed()
    }

    fn map(&mut self, address: u64, bytes: usize, row: &[u64]) -> (usize, Result<()>) {
        self.unmap_shut();
        let (mut mapped, mut end, mut outcome) = (0, address, Ok(()));
        for &memory in row {
            outcome = self.range(end).and_then(|(offset, range)| {
                let call = DriverCall::Map { address: end, memory, bytes: bytes as u64 };
                self.observer.watch(|| range.map(offset, &self.handle(memory, bytes)), |()| call)
            });
            if outcome.is_err() {
                break;
            }
            (mapped, end) = (mapped + 1, end + bytes as u64);
        }
        let bytes = (end - address) as usize;
        if mapped > 0
            && let Err(error) = self.set_access(&self.reached_by, address, bytes)
        {
            self.shut.push((address, bytes));
            self.unmap_shut();
            return (0, Err(error));
        }
        (mapped, outcome)
    }

    fn unmap(&mut self, address: u64, bytes: usize) -> Result<()> {
        let (offset, range) = self.range(address)?;
        self.observer.watch(
            || {
                // SAFETY: the page source unmaps mappings whose work is done; no work uses a mapping without access.
                unsafe { range.unmap(offset, bytes) }
            },
            |()| DriverCall::Unmap { address, bytes: bytes as u64 },
        )
    }

    fn release(&mut self, memory: u64, bytes: usize) -> Result<()> {
        let handle = ManuallyDrop::into_inner(self.handle(memory, bytes));
        let closed =
            self.observer.watch(|| handle.close(), |()| DriverCall::Release { memory, bytes: bytes as u64 });
        closed.map_err(|refused| {
            // The page source still has its number.
            let _ = refused.owner.into_raw();
            refused.error
        })?;
        self.figures.remove_segment(MempoolId::NONE, PoolSize::Large, bytes as u64);
        Ok(())
    }

    fn point(&mut self, heap: u32) -> Result<Option<Arc<Event>>> {
        let Some(slot) = self.slots.get(heap) else { return Ok(None) };
        let stream = match slot.owner.place(false) {
            Ok(stream) => stream,
            Err(End::At(point)) => return Ok(Some(point)),
            Err(End::Lost(_)) => return Ok(None),
            // One that was never recorded has been reached.
            Err(End::Done) => return Ok(Some(Arc::new(Event::new(&self.context)?))),
        };
        let point = self.observer.watch(
            || stream.point("marking free memory"),
            |event| DriverCall::Record { stream: stream.id(), event: Some(event.as_raw() as usize as u64) },
        );
        match point {
            // One that captures, or another thread's default stream, which only that thread can name.
            Err(Error::Capturing { .. } | Error::WrongThread) => Ok(None),
            point => Ok(Some(Arc::new(point?))),
        }
    }

    fn is_done(&mut self, mark: &Arc<Event>) -> Result<bool> {
        self.observer.watch(|| mark.is_complete(), |_| DriverCall::Query)
    }

    fn wait(&mut self, waiter: u32, of: u32, mark: &Arc<Event>) -> Result<bool> {
        let waiter = self.slots.get(waiter).and_then(|slot| slot.owner.stream());
        let of = self.slots.get(of).map(StreamSlot::stream_id);
        let (Some(waiter), Some(of)) = (waiter, of) else { return Ok(false) };
        if waiter.is_capturing()? {
            return Ok(false);
        }
        let (stream, event) = (waiter.id(), Some(mark.as_raw() as usize as u64));
        self.observer.watch(|| waiter.wait(mark), |()| DriverCall::StreamWait { stream, of, event })?;
        Ok(true)
    }

    fn before_leaving(&mut self, segment: &Segment) {
        self.watchers.tell(segment);
    }

    fn moved(&mut self, heap: u32, address: u64, bytes: usize, came: bool) {
        let action = if came { Action::SegmentMap } else { Action::SegmentUnmap };
        if let Some(slot) = self.slots.get(heap) {
            self.record.note(event(action, slot.handle(), address, bytes), None);
        }
    }
}

/// Whether memory can be mapped: the device says that it can, and the driver maps a page as a trial. Some drivers of virtual
/// machines refuse calls for mapping though the device says that it can. An error of a device that is lost, where nothing helps.
pub(super) fn can_map(context: &Context) -> Result<bool> {
    let device = context.device();
    if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
        return Ok(false);
    }
    match map_page(device) {
        // A full device says nothing about mapping.
        Err(error) if Vmm::is_out_of_memory(&error) => Ok(true),
        Err(Error::Driver(error)) if !error.context_is_lost() => Ok(false),
        mapped => mapped.map(|()| true),
    }
}

fn map_page(device: Device) -> Result<()> {
    let memory = PhysicalMemory::create(device, SLAB, &CreateOptions::supported_by(device)?)?;
    let range = AddressRange::reserve(device, SLAB, SLAB)?;
    range.map(0, &memory)?;
    let access = range.set_access(0, SLAB, &[device], Access::ReadWrite);
    // SAFETY: mapped above; its address was given to no one, so no work uses it.
    let unmap = || unsafe { range.unmap(0, SLAB) };
    // Once more, because the driver reports older errors of others in any call.
    access.and(unmap().or_else(|_| unmap()))
}
