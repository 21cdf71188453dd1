//! The two ends of a process: forked children, and exit with everything still alive.

use std::os::fd::AsFd;
use std::sync::Mutex;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{FileMapping, PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::ipc::{
    DeviceAllocation, ImportedMapping, InterprocessEvent, MemoryHandle, OpenedMemory, SharedWords,
};
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_core::{
    Context, DeviceBuffer, Driver, Error, Event, Fence, FenceLine, ManagedBuffer, PinnedBuffer, Stream,
    Transfer, pointer, scope,
};

use crate::common::files::TempFile;
use crate::common::{World, child, driver};

/// One of everything that has something to release.
struct Everything {
    stream: Stream,
    event: Event,
    fence: Fence,
    line: FenceLine,
    device: DeviceBuffer<u8>,
    transfer: Transfer<PinnedBuffer<u8>>,
    pinned: PinnedBuffer<u8>,
    managed: ManagedBuffer<u8>,
    registered: Registered<Vec<u8>>,
    mapping: Registered<FileMapping>,
    stager: Stager,
    words: SharedWords,
    shared_fence: Fence,
    allocation: DeviceAllocation,
    interprocess: InterprocessEvent,
    shareable: ShareableMemory,
    imported: ImportedMapping,
    context: Context,
}

impl Everything {
    fn new(context: &Context) -> Self {
        let stream = Stream::new(context).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&stream, 5000).unwrap();
        let pinned = || PinnedBuffer::<u8>::zeroed(context, 5000, PinnedFlags::default()).unwrap();
        let file = TempFile::on_tmpfs(&[1; 5000]);
        let mapping = FileMapping::private(&file.open()).unwrap();
        let line = FenceLine::new(context).unwrap();
        let words = SharedWords::create(context, 2).unwrap();
        let device_number = context.device();
        let page = vmm::granularity(device_number).unwrap();
        let options = CreateOptions::supported_by(device_number).unwrap();
        let shareable = ShareableMemory::create(device_number, page, &options).unwrap();
        let descriptor = shareable.export_posix_fd().unwrap();
        let devices = [device_number];
        let stager = Stager::builder(context).slots(2).slot_bytes(4096).build().unwrap();
        // Two of its slots are on their way, or were until now.
        stager.upload_from(&stream, &mut &[1; 5000][..], &device.whole()).unwrap();
        Self {
            event: Event::new(context).unwrap(),
            fence: line.record(&stream).unwrap(),
            line,
            transfer: Transfer::upload(&stream, pinned(), &device.whole()).unwrap(),
            pinned: pinned(),
            managed: ManagedBuffer::zeroed(context, 5000).unwrap(),
            registered: Registered::new(context, vec![1; 5000], RegisterFlags::default()).unwrap(),
            mapping: Registered::new(context, mapping, RegisterFlags::default()).unwrap(),
            stager,
            shared_fence: words.line(0).unwrap().record(&stream).unwrap(),
            words,
            allocation: DeviceAllocation::new(context, 5000).unwrap(),
            interprocess: InterprocessEvent::new(context).unwrap(),
            imported: ImportedMapping::import_posix_fd(device_number, descriptor.as_fd(), page, &devices)
                .unwrap(),
            shareable,
            device,
            stream,
            context: context.clone(),
        }
    }
}

/// In a forked child: every call says so, every release is silent.
fn is_of_no_use(mut all: Everything, driver: Driver) -> Result<(), String> {
    let mut buffer = [0; 5000];
    let (stream, context) = (all.stream.clone(), all.context.clone());
    let calls: Vec<(&str, Result<(), Error>)> = vec![
        ("Driver::over", Driver::over(driver.table()).map(drop)),
        ("Driver::system", Driver::system().map(drop)),
        ("device_count", driver.device_count().map(drop)),
        ("device", driver.device(0).map(drop)),
        ("devices", driver.devices().map(drop)),
        ("name", context.device().name().map(drop)),
        ("uuid", context.device().uuid().map(drop)),
        ("total_memory", context.device().total_memory().map(drop)),
        ("can_access_peer", context.device().can_access_peer(context.device()).map(drop)),
        ("primary_context", context.device().primary_context().map(drop)),
        ("with_current", context.with_current(|| ())),
        ("Context::synchronize", context.synchronize()),
        ("memory_info", context.memory_info().map(drop)),
        ("Stream::new", Stream::new(&context).map(drop)),
        ("Stream::legacy", Stream::legacy(&context).map(drop)),
        ("Stream::per_thread", Stream::per_thread(&context).map(drop)),
        ("Stream::synchronize", stream.synchronize()),
        ("is_idle", stream.is_idle().map(drop)),
        ("is_capturing", stream.is_capturing().map(drop)),
        ("Stream::record", stream.record(&all.event)),
        ("Stream::wait", stream.wait(&all.event)),
        ("Event::new", Event::new(&context).map(drop)),
        ("is_complete", all.event.is_complete().map(drop)),
        ("Event::synchronize", all.event.synchronize()),
        ("Fence::record", Fence::record(&stream).map(drop)),
        ("Fence::is_complete", all.fence.is_complete().map(drop)),
        ("Fence::synchronize", all.fence.synchronize(None)),
        ("Fence::make_wait", all.fence.make_wait(&stream)),
        ("FenceLine::new", FenceLine::new(&context).map(drop)),
        ("FenceLine::record", all.line.record(&stream).map(drop)),
        ("uninit", DeviceBuffer::<u8>::uninit(&stream, 1).map(drop)),
        ("zeroed", DeviceBuffer::<u8>::zeroed(&stream, 1).map(drop)),
        ("from_slice", DeviceBuffer::from_slice(&stream, &[1u8]).map(drop)),
        ("to_vec", all.device.to_vec(&stream).map(drop)),
        ("copy_from_slice", all.device.copy_from_slice(&stream, &buffer)),
        ("copy_to_slice", all.device.copy_to_slice(&stream, &mut buffer)),
        ("fill_bytes", all.device.whole().fill_bytes(&stream, 1)),
        ("on", all.device.on(&stream).map(drop)),
        ("is_done", all.transfer.is_done().map(drop)),
        (
            "Transfer::upload",
            Transfer::upload(&stream, vec![0u8; 5000], &all.device.whole()).map(drop).map_err(Error::from),
        ),
        ("scope", scope(&context, |scope| scope.upload(&stream, &[1; 5000], &all.device.whole()))),
        ("PinnedBuffer::zeroed", PinnedBuffer::<u8>::zeroed(&context, 1, PinnedFlags::default()).map(drop)),
        ("PinnedBuffer::as_slice", all.pinned.as_slice().map(drop)),
        ("PinnedBuffer::as_mut_slice", all.pinned.as_mut_slice().map(drop)),
        ("ManagedBuffer::zeroed", ManagedBuffer::<u8>::zeroed(&context, 1).map(drop)),
        ("ManagedBuffer::as_slice", all.managed.as_slice().map(drop)),
        (
            "Registered::new",
            Registered::new(&context, vec![0u8; 1], RegisterFlags::default()).map(drop).map_err(Error::from),
        ),
        ("Registered::as_slice", all.registered.as_slice().map(drop)),
        ("SharedWords::line", all.words.line(0).map(drop)),
        ("SharedWords::create", SharedWords::create(&context, 1).map(drop)),
        ("Fence::is_complete of a shared word", all.shared_fence.is_complete().map(drop)),
        ("DeviceAllocation::new", DeviceAllocation::new(&context, 1).map(drop)),
        // SAFETY: the memory stays until the peer has closed what it opened.
        ("DeviceAllocation::handle", unsafe { all.allocation.handle(0..1) }.map(drop)),
        (
            "OpenedMemory::open",
            OpenedMemory::open(&context, &MemoryHandle::from_parts([0; 64], 0, 1)).map(drop),
        ),
        // SAFETY: nobody is given it.
        ("InterprocessEvent::handle", unsafe { all.interprocess.handle() }.map(drop)),
        ("ShareableMemory::export_posix_fd", all.shareable.export_posix_fd().map(drop)),
        ("PhysicalMemory::properties", all.shareable.memory().properties().map(drop)),
        ("ImportedMapping::on", all.imported.on(&stream).map(drop)),
        ("Stager::new", Stager::new(&context).map(drop)),
        ("Stager::upload", all.stager.upload(&stream, &buffer, &all.device.whole())),
        ("Stager::download", all.stager.download(&stream, &all.device.whole(), &mut buffer)),
        ("Stager::upload_from", all.stager.upload_from(&stream, &mut &buffer[..], &all.device.whole())),
        ("attributes", pointer::attributes(all.device.context(), all.device.as_raw()).map(drop)),
    ];
    for (call, result) in calls {
        if !matches!(result, Err(Error::Forked)) {
            return Err(format!("{call} in a forked child: {result:?}"));
        }
    }
    let Everything { device, pinned, managed, registered, mapping, transfer, allocation, imported, .. } = all;
    let closed = [
        ("DeviceBuffer::close", device.close().map_err(|refused| refused.error)),
        ("PinnedBuffer::close", pinned.close().map_err(|refused| refused.error)),
        ("ManagedBuffer::close", managed.close().map_err(|refused| refused.error)),
        ("Registered::close", registered.close().map(drop).map_err(|refused| refused.error)),
        ("Registered::close of a file", mapping.close().map(drop).map_err(|refused| refused.error)),
        ("DeviceAllocation::close", allocation.close().map_err(|refused| refused.error)),
        ("ImportedMapping::close", imported.close().map_err(|refused| refused.error)),
        ("Transfer::wait", transfer.wait().map(drop).map_err(|refused| refused.error)),
    ];
    // Those errors gave their owners back, and dropping them was as silent as dropping the rest.
    for (call, result) in closed {
        if !matches!(result, Err(Error::Forked)) {
            return Err(format!("{call} in a forked child: {result:?}"));
        }
    }
    match driver.release_failures() {
        0 => Ok(()),
        failures => Err(format!("{failures} releases in a forked child were not silent")),
    }
}

#[test]
fn a_forked_child_can_do_nothing_and_drop_everything() {
    let world = World::new();
    let (all, dropped) = (Everything::new(&world.context), Everything::new(&world.context));
    let driver = world.driver;
    let failures = driver.release_failures();
    assert_eq!(failures, 0);
    // Moved into the child by the fork; the parent has and keeps its own.
    let parents = std::mem::ManuallyDrop::new((all, dropped));
    child::forked(|| {
        // SAFETY: the child's own copy of the memory, taken out once; the parent's is not touched.
        let (all, dropped) = unsafe { std::ptr::read(&*parents) };
        drop(dropped);
        is_of_no_use(all, driver)
    });
    let (all, _) = std::mem::ManuallyDrop::into_inner(parents);
    // The parent noticed nothing.
    assert_eq!(all.device.to_vec(&all.stream).unwrap().len(), 5000);
    assert_eq!(all.transfer.wait().unwrap().len(), 5000);
}

#[test]
fn a_child_forked_before_the_driver_was_used_may_use_it() {
    let test = "process::a_child_forked_before_the_driver_was_used_may_use_it";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    child::forked(|| {
        let context = driver().device(0).and_then(|device| device.primary_context());
        let stream = context.and_then(|context| Stream::new(&context)).map_err(|error| error.to_string())?;
        let buffer = DeviceBuffer::from_slice(&stream, &[1u8, 2, 3]).map_err(|error| error.to_string())?;
        match buffer.to_vec(&stream) {
            Ok(bytes) if bytes == [1, 2, 3] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

static ALIVE: Mutex<Vec<Everything>> = Mutex::new(Vec::new());

/// Drops what is in the static, as a C++ program's static destructors would.
extern "C" fn drop_all() {
    let all = std::mem::take(&mut *ALIVE.lock().unwrap());
    drop(all);
}

fn keep_alive() {
    let context = driver().device(0).unwrap().primary_context().unwrap();
    ALIVE.lock().unwrap().extend([Everything::new(&context), Everything::new(&context)]);
}

#[test]
fn handles_that_are_alive_at_exit_are_no_problem() {
    let test = "process::handles_that_are_alive_at_exit_are_no_problem";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    keep_alive();
}

#[test]
fn handles_may_be_dropped_by_exit_handlers_that_run_before_the_drivers() {
    let test = "process::handles_may_be_dropped_by_exit_handlers_that_run_before_the_drivers";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    keep_alive();
    // SAFETY: the handler touches one static without a destructor.
    unsafe { libc::atexit(drop_all) };
}

#[test]
fn handles_may_be_dropped_by_exit_handlers_that_run_after_the_drivers() {
    let test = "process::handles_may_be_dropped_by_exit_handlers_that_run_after_the_drivers";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    // SAFETY: as above. Handlers run in the reverse order of their registration.
    unsafe { libc::atexit(drop_all) };
    keep_alive();
}

#[test]
fn handles_may_be_dropped_by_the_end_of_a_thread() {
    let test = "process::handles_may_be_dropped_by_the_end_of_a_thread";
    if let Some(output) = child::again(test, &[]) {
        return child::expect_silent_success(&output);
    }
    std::thread_local! {
        static MINE: std::cell::RefCell<Option<Everything>> = const { std::cell::RefCell::new(None) };
    }
    let context = driver().device(0).unwrap().primary_context().unwrap();
    let all = Everything::new(&context);
    std::thread::spawn(move || MINE.with(|mine| *mine.borrow_mut() = Some(all))).join().unwrap();
    assert_eq!(driver().release_failures(), 0);
}
