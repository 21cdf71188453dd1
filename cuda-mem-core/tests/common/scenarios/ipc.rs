//! What is for other processes, as far as one goes with it.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::ipc::{
    DeviceAllocation, EventHandle, ImportedMapping, InterprocessEvent, OpenedEvent, OpenedMemory, SharedWords,
};
use cuda_mem_core::raw_pool::{
    self, AllocationType, ImportedBlock, MemoryLocation, MemoryPool, PoolProperties,
};
use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory, ShareableMemory};
use cuda_mem_core::{Context, Error, Result, Stream, copy};

use super::LEN;

/// An own handle, which the driver refuses by this code.
const OWN: u32 = 201;

fn expect_own<T>(result: Result<T>) -> Result<()> {
    match result {
        Err(error) if error.code().is_some_and(|code| code.0 == OWN) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => panic!("a handle of this process was opened"),
    }
}

pub(super) fn shareable_memory(context: &Context) -> Result<()> {
    let (device, stream) = (context.device(), Stream::new(context)?);
    let page = vmm::granularity(device)?;
    let memory = ShareableMemory::create(device, page, &CreateOptions::supported_by(device)?)?;
    let descriptor = memory.export_posix_fd()?;
    let imported = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), page)?;
    // The driver does not say of imported memory how it came.
    match ShareableMemory::new(imported) {
        Err(refused) if matches!(refused.error, Error::NotShareable { .. }) => refused.owner.close()?,
        Err(refused) => return Err(refused.error),
        Ok(_) => panic!("an imported handle can be exported"),
    }
    let mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device])?;
    {
        let target = mapping.on(&stream)?;
        // SAFETY: a mapping that knows that the stream uses it; the halves of a page do not overlap.
        unsafe { copy::memcpy_async(&stream, target.address() + 8192, target.address(), LEN) }?;
    }
    mapping.close()?;
    drop(ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device])?);
    Ok(memory.into_memory().close()?)
}

pub(super) fn legacy_handles(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let memory = DeviceAllocation::new(context, LEN)?;
    // SAFETY: the memory stays until the peer has closed what it opened.
    expect_own(OpenedMemory::open(context, &unsafe { memory.handle(5..LEN) }?))?;
    {
        let target = memory.on(&stream)?;
        // SAFETY: memory that knows that the stream uses it; the two parts do not overlap.
        unsafe { copy::memcpy_async(&stream, target.address() + 8192, target.address(), LEN) }?;
    }
    let event = InterprocessEvent::new(context)?;
    stream.record(event.event())?;
    // SAFETY: no other process is given it.
    let handle = unsafe { event.handle() }?;
    expect_own(OpenedEvent::open(context, &EventHandle::from_bytes(*handle.as_bytes())))?;
    event.event().synchronize()?;
    memory.close()?;
    drop(DeviceAllocation::new(context, LEN)?);
    Ok(())
}

pub(super) fn imported_blocks(context: &Context) -> Result<()> {
    let (device, stream) = (context.device(), Stream::new(context)?);
    let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(device.as_raw()));
    let properties = PoolProperties { allocation_type, location, shareable: true, max_size: 0 };
    let pool = MemoryPool::create(context.driver(), &properties)?;
    let theirs = Arc::new(MemoryPool::import(context.driver(), pool.export()?.as_fd())?);
    let address = pool.allocate(LEN, &stream)?;
    let used = import_twice(&pool, &theirs, address, &stream);
    let free = || {
        // SAFETY: memory of the pool, which nothing uses any more; after an error it is still allocated.
        unsafe { raw_pool::free(address, &stream) }
    };
    free().or_else(|_| free())?;
    used?;
    stream.synchronize()
}

fn import_twice(pool: &MemoryPool, theirs: &Arc<MemoryPool>, address: u64, stream: &Stream) -> Result<()> {
    // SAFETY: nothing here borrows the memory; it is freed after the imports are.
    let export = unsafe { MemoryPool::export_pointer(pool.driver(), address) }?;
    // SAFETY: imported once at a time, from the pool's own process, which frees after it.
    let import = || unsafe { ImportedBlock::import(theirs, &export, LEN, stream) };
    let block = import()?;
    drop(block.on(stream)?);
    block.close()?;
    drop(import()?);
    Ok(())
}

pub(super) fn shared_words(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let words = SharedWords::create(context, 4)?;
    let descriptor = words.as_fd().try_clone_to_owned();
    let theirs = SharedWords::open(context, descriptor.map_err(io)?)?;
    let fence = words.line(1)?.record(&one)?;
    let same = theirs.line(1)?.fence(fence.generation().unwrap_or_default())?;
    same.make_wait(&two)?;
    same.synchronize(None)?;
    theirs.line(2)?.fence(1)?.make_wait(&two)?;
    theirs.line(2)?.poison();
    assert!(words.line(2)?.is_poisoned());
    assert!(matches!(words.line(2)?.record(&one), Err(Error::Poisoned | Error::Driver(_))));
    Ok(())
}

fn io(error: std::io::Error) -> Error {
    Error::Io { call: "dup", source: Arc::new(error) }
}
