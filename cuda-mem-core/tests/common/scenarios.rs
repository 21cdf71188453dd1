//! Small programs that together use every feature of the crate, each from the first call to the last drop.
//!
//! They are run as they are, with other contexts current, beside another thread's capture, and with each of their driver
//! calls failing in turn. Errors are returned, wrong bytes panic.

use std::time::Duration;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{
    FileMapping, HostMapping, HostMemory, MappingOptions, Pages, PinnedFlags, RegisterFlags, RegisterOptions,
    Registered, raw,
};
use cuda_mem_core::raw_pool::{self, AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::stream_mem::{self, WaitFlags};
use cuda_mem_core::sys::{CUmemPool_attribute, CUresult, CUstreamCaptureMode};
use cuda_mem_core::vmm::{self, Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{
    Context, DeviceBuffer, Error, Event, Fence, FenceLine, ManagedBuffer, PinnedBuffer, Result, Stream,
    Transfer, copy, pointer, scope,
};

use super::files::TempFile;
use super::pattern;

#[path = "scenarios/ipc.rs"]
mod ipc;

pub(crate) type Scenario = fn(&Context) -> Result<()>;

/// Those that never wait for a whole context, and so may run while a stream of it captures.
pub(crate) const ALL: &[(&str, Scenario)] = &[
    ("devices", devices),
    ("context", context),
    ("streams", streams),
    ("events", events),
    ("event fences", event_fences),
    ("word fences", word_fences),
    ("buffers", buffers),
    ("buffers of several streams", buffers_of_several_streams),
    ("buffers of a per-thread stream", buffers_of_a_per_thread_stream),
    ("raw copies", raw_copies),
    ("pinned memory", pinned),
    ("managed memory", managed),
    ("registered memory", registered),
    ("registered files", registered_files),
    ("populated memory", populated),
    ("raw pins", raw_pins),
    ("raw pools", raw_pools),
    ("virtual memory", virtual_memory),
    ("shareable memory", ipc::shareable_memory),
    ("legacy handles", ipc::legacy_handles),
    ("imported blocks", ipc::imported_blocks),
    ("shared words", ipc::shared_words),
    ("transfers", transfers),
    ("dropped transfers", dropped_transfers),
    ("scopes", scopes),
    ("staged slices", staged_slices),
    ("staged sources", staged_sources),
    ("staged batches on two streams", staged_copies_on_two_streams),
    ("releases during a capture", releases_during_a_capture),
    ("two devices", two_devices),
];

/// Those that wait for a whole context, which no stream of it may capture beside.
pub(crate) const WAITING: &[(&str, Scenario)] = &[("waits for a whole context", waits_for_a_whole_context)];

const LEN: usize = 4099;

fn devices(context: &Context) -> Result<()> {
    let driver = context.driver();
    for device in driver.devices()? {
        assert!(!device.name()?.is_empty());
        assert!(device.total_memory()? > 0);
        device.uuid()?;
        device.can_access_peer(context.device())?;
    }
    assert!(matches!(driver.device(1000), Err(Error::NoSuchDevice { ordinal: 1000, .. } | Error::Driver(_))));
    Ok(())
}

fn context(context: &Context) -> Result<()> {
    let memory = context.memory_info()?;
    assert!(memory.free <= memory.total);
    assert_eq!(context.with_current(|| 7)?, 7);
    let again = context.device().primary_context()?;
    assert_eq!(again, *context);
    assert_eq!(context.driver().reclaim(), 0);
    Ok(())
}

fn waits_for_a_whole_context(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, LEN)?;
    context.synchronize()?;
    assert!(stream.is_idle()?);
    buffer.close()?;
    Ok(())
}

fn streams(context: &Context) -> Result<()> {
    let stream = Stream::with_priority(context, -1)?;
    let legacy = Stream::legacy(context)?;
    let per_thread = Stream::per_thread(context)?;
    assert!(stream != legacy && legacy != per_thread);
    // SAFETY: the handle of a stream that outlives the borrowed one.
    let borrowed = unsafe { Stream::borrow_raw(context, stream.as_raw()) }?;
    assert_eq!(borrowed, stream);
    stream.wait_stream(&per_thread)?;
    per_thread.wait_stream(&stream)?;
    stream.synchronize()?;
    assert!(stream.is_idle()?);
    assert!(!stream.is_capturing()?);
    Ok(())
}

fn events(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let (start, end) = (Event::with_timing(context)?, Event::with_timing(context)?);
    one.record(&start)?;
    two.wait(&start)?;
    two.record(&end)?;
    end.synchronize()?;
    assert!(start.is_complete()?);
    end.elapsed_since(&start)?;
    Ok(())
}

fn event_fences(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let fence = Fence::record(&one)?;
    fence.make_wait(&two)?;
    fence.synchronize(Some(Duration::from_secs(60)))?;
    assert!(fence.is_complete()?);
    Fence::record(&two)?.synchronize(None)
}

fn word_fences(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let line = FenceLine::new(context)?;
    let first = line.record(&one)?;
    first.make_wait(&two)?;
    let second = line.record(&two)?;
    second.synchronize(Some(Duration::from_secs(60)))?;
    assert!(first.is_complete()?);
    line.poison();
    assert!(matches!(second.synchronize(None), Err(Error::Poisoned)));
    Ok(())
}

fn buffers(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let bytes = pattern(LEN, 1);
    let buffer = DeviceBuffer::from_slice(&stream, &bytes)?;
    assert_eq!(buffer.to_vec(&stream)?, bytes);
    let other = DeviceBuffer::<u8>::zeroed(&stream, LEN)?;
    other.range(1..=10)?.copy_from(&stream, &buffer.range(..10)?)?;
    other.range(11..)?.fill_bytes(&stream, 7)?;
    let mut part = [0; 12];
    other.range(..12)?.copy_to_slice(&stream, &mut part)?;
    assert_eq!((part[0], &part[1..11], part[11]), (0, &bytes[..10], 7));
    buffer.close()?;
    Ok(())
}

fn buffers_of_several_streams(context: &Context) -> Result<()> {
    let (home, writer, reader) = (Stream::new(context)?, Stream::new(context)?, Stream::new(context)?);
    let bytes = pattern(LEN, 2);
    let buffer = DeviceBuffer::<u8>::uninit(&home, LEN)?;
    let copied = DeviceBuffer::<u8>::uninit(&home, LEN)?;
    buffer.copy_from_slice(&writer, &bytes)?;
    copied.whole().copy_from(&reader, &buffer.whole())?;
    buffer.whole().fill_bytes(&writer, 0)?;
    drop((writer, reader));
    assert_eq!(copied.to_vec(&home)?, bytes);
    drop(buffer);
    copied.close()?;
    Ok(())
}

fn buffers_of_a_per_thread_stream(context: &Context) -> Result<()> {
    let bytes = pattern(LEN, 3);
    let thread = || -> Result<DeviceBuffer<u8>> {
        let own = Stream::per_thread(context)?;
        let buffer = DeviceBuffer::from_slice(&own, &bytes)?;
        buffer.whole().fill_bytes(&own, 9)?;
        Ok(buffer)
    };
    // Dropped in a thread where its stream has no name, and used there before.
    let buffer = std::thread::scope(|scope| scope.spawn(thread).join()).expect("no panic")?;
    let stream = Stream::new(context)?;
    assert_eq!(buffer.to_vec(&stream)?, [9; LEN]);
    Ok(())
}

fn raw_copies(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let bytes = pattern(LEN, 4);
    let source = DeviceBuffer::from_slice(&one, &bytes)?;
    let target = DeviceBuffer::<u8>::uninit(&two, LEN)?;
    {
        let (from, to) = (source.on_read(&two)?, target.on(&two)?);
        // SAFETY: both buffers know that this stream uses them.
        unsafe { copy::memcpy_async(&two, to.address(), from.address(), LEN) }?;
    }
    assert_eq!(target.to_vec(&one)?, bytes);
    // Drivers refuse words in stream-ordered memory.
    let words = PinnedBuffer::<u64>::zeroed(context, 1, PinnedFlags::MAPPED)?;
    {
        let word = words.on(&two)?;
        // SAFETY: the word is an aligned one of a buffer that knows that this stream uses it.
        unsafe { stream_mem::write_value64(&two, word.address(), 5) }?;
        // SAFETY: as above; the stream itself has written what it waits for.
        unsafe { stream_mem::wait_value64(&two, word.address(), 5, WaitFlags::EQUAL) }?;
    }
    assert_eq!(words.as_slice()?, [5]);
    Ok(())
}

fn pinned(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let mut pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::PORTABLE | PinnedFlags::MAPPED)?;
    pinned.as_mut_slice()?.copy_from_slice(&pattern(LEN, 5));
    let device = DeviceBuffer::from_slice(&stream, pinned.as_slice()?)?;
    let target = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default())?;
    {
        let (from, to) = (device.on_read(&stream)?, target.on(&stream)?);
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), LEN) }?;
    }
    assert_eq!(target.as_slice()?, pinned.as_slice()?);
    pinned.close()?;
    Ok(())
}

fn managed(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let mut managed = ManagedBuffer::<u8>::zeroed(context, LEN)?;
    managed.as_mut_slice()?.fill(3);
    let device = DeviceBuffer::<u8>::uninit(&stream, LEN)?;
    {
        let (from, to) = (managed.on(&stream)?, device.on(&stream)?);
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), LEN) }?;
    }
    assert_eq!(managed.as_slice()?, [3; LEN]);
    assert_eq!(device.to_vec(&stream)?, [3; LEN]);
    managed.close()?;
    drop(ManagedBuffer::<u8>::zeroed(context, 1)?);
    Ok(())
}

fn registered(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let bytes = pattern(LEN, 6);
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let mut registered = Registered::new(context, bytes.clone(), flags)?;
    let device = DeviceBuffer::<u8>::zeroed(&stream, LEN)?;
    {
        let (from, to) = (registered.on(&stream)?, device.on(&stream)?);
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), LEN) }?;
    }
    assert_eq!(device.to_vec(&stream)?, bytes);
    registered.as_mut_slice()?.fill(1);
    assert!(pointer::attributes(context, registered.as_ptr().addr() as u64)?.range_size >= LEN);
    assert_eq!(registered.close()?, [1; LEN]);
    drop(Registered::new(context, bytes.into_boxed_slice(), RegisterFlags::default())?);
    Ok(())
}

fn registered_files(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let bytes = pattern(3 * 4096 + 17, 7);
    let file = TempFile::on_tmpfs(&bytes);
    let mapping = FileMapping::private(&file.open())?;
    let registered = Registered::new(context, mapping, RegisterFlags::default())?;
    let device = DeviceBuffer::<u8>::zeroed(&stream, bytes.len())?;
    scope(context, |scope| {
        let half = bytes.len() / 2;
        scope.upload_bytes(&stream, &registered, 0..half, &device.range(..half)?)?;
        scope.upload_bytes(&stream, &registered, half..bytes.len(), &device.range(half..)?)
    })?;
    assert_eq!(device.to_vec(&stream)?, bytes);
    drop(registered.close()?);
    Ok(())
}

fn populated(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let memory = HostMapping::new(LEN, &MappingOptions::new().pages(Pages::Transparent))?;
    let options = RegisterOptions::new().threads(2).flags(RegisterFlags::MAPPED);
    let mut registered = Registered::with_options(context, memory, &options)?;
    registered.as_mut_slice()?.copy_from_slice(&pattern(LEN, 13));
    let device = DeviceBuffer::<u8>::uninit(&stream, LEN)?;
    let upload = Transfer::upload(&stream, registered, &device.whole())?;
    assert_eq!(device.to_vec(&stream)?, pattern(LEN, 13));
    let memory = upload.wait()?.close()?;
    assert_eq!(memory.as_slice(), pattern(LEN, 13));
    Ok(())
}

fn raw_pins(context: &Context) -> Result<()> {
    let driver = context.driver();
    let memory = pattern(LEN, 14);
    let start = memory.as_ptr().cast_mut().cast();
    // SAFETY: the vector lives until it is unpinned below.
    unsafe { raw::pin_memory_with(driver, start, LEN) }?;
    // Repeated if it fails, because it is still pinned then and would leak.
    // SAFETY: no device uses it.
    let unpinned = unsafe { raw::unpin_memory_with(driver, start) }.or_else(|_| {
        // SAFETY: as above.
        unsafe { raw::unpin_memory_with(driver, start) }
    });
    Ok(unpinned?)
}

fn raw_pools(context: &Context) -> Result<()> {
    let (stream, device) = (Stream::new(context)?, context.device());
    assert!(!MemoryPool::current_of_device(device)?.is_owned());
    let create = |shareable| {
        let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(device.as_raw()));
        let properties = PoolProperties { allocation_type, location, shareable, max_size: 0 };
        MemoryPool::create(context.driver(), &properties)
    };
    let (pool, shareable) = (create(false)?, create(true)?);
    shareable.export()?;
    assert!(pool.is_accessible_from(device)?);
    pool.set_access(&[device], true)?;
    pool.set_number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1 << 20)?;
    assert_eq!(pool.attributes()?.release_threshold, 1 << 20);
    let address = pool.allocate(LEN, &stream)?;
    let free = || {
        // SAFETY: memory of the pool, which nothing uses; after an error it is still allocated.
        unsafe { raw_pool::free(address, &stream) }
    };
    free().or_else(|_| free())?;
    pool.trim_to(0)?;
    pool.close()?;
    Ok(shareable.close()?)
}

fn virtual_memory(context: &Context) -> Result<()> {
    let (device, stream) = (context.device(), Stream::new(context)?);
    let page = vmm::granularity(device)?;
    let options = CreateOptions::supported_by(device)?;
    let memory = PhysicalMemory::create(device, page, &options)?;
    if options.shareable {
        drop(memory.export_posix_fd()?);
    }
    let range = AddressRange::reserve(device, 4 * page, 2 * page)?;
    range.map(0, &memory)?;
    let used = aliased(&stream, &range, &memory);
    // Repeated if one fails, because the work goes on and the memory is still mapped then.
    stream.synchronize().or_else(|_| stream.synchronize())?;
    let unmap = || {
        // SAFETY: whole mappings, from the first address on; the only stream that used them was waited for.
        unsafe { range.unmap(0, range.mapped_bytes()) }
    };
    unmap().or_else(|_| unmap())?;
    used?;
    range.close()?;
    Ok(memory.close()?)
}

/// Writes memory at one of its addresses and reads it at another.
fn aliased(stream: &Stream, range: &AddressRange, memory: &PhysicalMemory) -> Result<()> {
    let (device, page) = (stream.context().device(), memory.bytes());
    range.map(page, memory)?;
    range.set_access(0, 2 * page, &[device], Access::ReadWrite)?;
    let bytes = pattern(LEN, 15);
    let (source, target) =
        (DeviceBuffer::from_slice(stream, &bytes)?, DeviceBuffer::<u8>::uninit(stream, LEN)?);
    let (one, two) = (range.address(), range.address() + page as u64);
    {
        let from = source.on_read(stream)?;
        // SAFETY: a mapping that stays until the stream was waited for, and a buffer that knows that the stream uses it.
        unsafe { copy::memcpy_async(stream, one, from.address(), LEN) }?;
    }
    {
        let to = target.on(stream)?;
        // SAFETY: as above.
        unsafe { copy::memcpy_async(stream, to.address(), two, LEN) }?;
    }
    assert_eq!(target.to_vec(stream)?, bytes);
    Ok(())
}

fn transfers(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let device = DeviceBuffer::<u8>::uninit(&one, LEN)?;
    let upload = Transfer::upload(&one, pattern(LEN, 8), &device.whole())?;
    let target = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default())?;
    let download = Transfer::download(&two, &device.whole(), target)?;
    upload.is_done()?;
    assert_eq!(download.wait()?.as_slice()?, pattern(LEN, 8));
    assert_eq!(upload.wait()?, pattern(LEN, 8));
    Ok(())
}

fn dropped_transfers(context: &Context) -> Result<()> {
    let stream = Stream::new(context)?;
    let device = DeviceBuffer::<u8>::uninit(&stream, LEN)?;
    let pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default())?;
    drop(Transfer::upload(&stream, pinned, &device.whole())?);
    let registered = Registered::new(context, pattern(LEN, 9), RegisterFlags::default())?;
    drop(Transfer::upload(&stream, registered, &device.whole())?);
    assert_eq!(device.to_vec(&stream)?, pattern(LEN, 9));
    Ok(())
}

fn scopes(context: &Context) -> Result<()> {
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let source = pattern(LEN, 10);
    let mut target = vec![0; LEN];
    let device = DeviceBuffer::<u8>::uninit(&one, LEN)?;
    scope(context, |scope| {
        scope.register(&source)?;
        let target = scope.register_mut(&mut target)?;
        scope.upload(&one, &source, &device.whole())?;
        scope.download(&two, &device.whole(), target)
    })?;
    assert_eq!(source, target);
    Ok(())
}

/// Slots so small that a copy goes round the ring.
fn stager(context: &Context) -> Result<Stager> {
    Stager::builder(context).threads(2).slots(2).slot_bytes(32 << 10).build()
}

fn staged_slices(context: &Context) -> Result<()> {
    let (stager, stream) = (stager(context)?, Stream::new(context)?);
    for len in [LEN, 25 * LEN] {
        let (source, mut target) = (pattern(len, 12), vec![0; len]);
        let device = DeviceBuffer::<u8>::uninit(&stream, len)?;
        stager.upload(&stream, &source, &device.whole())?;
        stager.download(&stream, &device.whole(), &mut target)?;
        assert!(source == target);
    }
    Ok(())
}

fn staged_sources(context: &Context) -> Result<()> {
    let (stager, stream) = (stager(context)?, Stream::new(context)?);
    let bytes = pattern(25 * LEN, 13);
    let file = TempFile::on_tmpfs(&bytes);
    let device = DeviceBuffer::<u8>::uninit(&stream, bytes.len())?;
    stager.upload_file(&stream, &file.open(), 0, &device.whole())?;
    assert!(device.to_vec(&stream)? == bytes);
    device.whole().fill_bytes(&stream, 0)?;
    stager.upload_from(&stream, &mut &bytes[..], &device.whole())?;
    assert!(device.to_vec(&stream)? == bytes);
    Ok(())
}

fn staged_copies_on_two_streams(context: &Context) -> Result<()> {
    let (stager, one, two) = (stager(context)?, Stream::new(context)?, Stream::new(context)?);
    let bytes = pattern(20 * LEN, 14);
    let device = DeviceBuffer::<u8>::zeroed(&one, bytes.len())?;
    let (first, second) = (&bytes[..9 * LEN], &bytes[10 * LEN..]);
    let (start, end) = (device.range(..9 * LEN)?, device.range(10 * LEN..)?);
    stager.upload(&one, first, &start)?;
    stager.upload(&one, second, &end)?;
    let (mut left, mut right) = (vec![0; first.len()], vec![0; second.len()]);
    stager.download(&two, &start, &mut left)?;
    stager.download(&two, &end, &mut right)?;
    assert!(left == first && right == second);
    // Dropped before the buffer's streams, which still have the last of its copies.
    stager.upload(&one, first, &start)?;
    drop(stager);
    Ok(())
}

fn releases_during_a_capture(context: &Context) -> Result<()> {
    let result = dropped_during_a_capture(context);
    // What a capture keeps from being released waits for the next allocation, or for this.
    while context.driver().reclaim() > 0 {}
    result
}

fn dropped_during_a_capture(context: &Context) -> Result<()> {
    let (home, stream) = (Stream::new(context)?, Stream::new(context)?);
    let (one, two) = (DeviceBuffer::<u8>::zeroed(&home, LEN)?, DeviceBuffer::<u8>::zeroed(&stream, LEN)?);
    let pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::MAPPED)?;
    let managed = ManagedBuffer::<u8>::zeroed(context, LEN)?;
    let registered = Registered::new(context, pattern(LEN, 11), RegisterFlags::MAPPED)?;
    one.whole().fill_bytes(&stream, 1)?;
    drop((pinned.on(&stream)?, managed.on(&stream)?, registered.on(&stream)?));
    while_capturing(&stream, || {
        assert!(matches!(
            two.whole().fill_bytes(&stream, 1),
            Err(Error::Capturing { .. } | Error::Driver(_))
        ));
        drop((one, two, pinned, managed, registered));
    });
    stream.synchronize()?;
    drop(DeviceBuffer::<u8>::uninit(&home, LEN)?);
    Ok(())
}

/// Runs `body` while `stream` captures. The raw calls are repeated if one fails: they are not what is tested.
pub(crate) fn while_capturing(stream: &Stream, body: impl FnOnce()) {
    let table = stream.context().driver().table();
    let twice = |call: &mut dyn FnMut() -> CUresult| {
        if call() != CUresult::CUDA_SUCCESS {
            assert_eq!(call(), CUresult::CUDA_SUCCESS);
        }
    };
    let (begin, end) = (table.cuStreamBeginCapture().unwrap(), table.cuStreamEndCapture().unwrap());
    let destroy = table.cuGraphDestroy().unwrap();
    let mut graph = std::ptr::null_mut();
    let raw = stream.as_raw().cast();
    // SAFETY: a live stream.
    twice(&mut || unsafe { begin(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) });
    body();
    // SAFETY: the stream captures; one handle to write.
    twice(&mut || unsafe { end(raw, &mut graph) });
    // SAFETY: the graph of that capture, destroyed once.
    twice(&mut || unsafe { destroy(graph) });
}

fn two_devices(context: &Context) -> Result<()> {
    let devices = context.driver().devices()?;
    let Some(second) = devices.get(1) else { return Ok(()) };
    let other = second.primary_context()?;
    let (here, there) = (Stream::new(context)?, Stream::new(&other)?);
    let bytes = pattern(LEN, 12);
    let source = DeviceBuffer::from_slice(&here, &bytes)?;
    let target = DeviceBuffer::<u8>::uninit(&there, LEN)?;
    target.whole().copy_from(&there, &source.whole())?;
    assert_eq!(target.to_vec(&there)?, bytes);
    drop(target);
    let target = DeviceBuffer::<u8>::uninit(&there, LEN)?;
    target.whole().copy_from(&here, &source.whole())?;
    drop(source);
    assert_eq!(target.to_vec(&there)?, bytes);
    Ok(())
}
