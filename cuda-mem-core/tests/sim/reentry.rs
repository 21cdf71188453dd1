//! Code of the program that runs inside a call, and calls back.

use std::any::Any;
use std::fmt;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use std::{future::Future, pin::pin};

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered, SharedMapping};
use cuda_mem_core::ipc::ImportedMapping;
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolBlock, PoolProperties};
use cuda_mem_core::sys::{CUresult, CUstreamCaptureMode};
use cuda_mem_core::vmm::{self, CreateOptions, ShareableMemory};
use cuda_mem_core::{
    Context, DeviceBuffer, Driver, Error, FenceLine, LateReports, ManagedBuffer, PinnedBuffer, Stream,
    Transfer, UsedElsewhere, copy,
};
use cuda_mem_sim::Sim;

use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::gate::Gate;

const LIMIT: Duration = Duration::from_secs(20);

/// Runs a test in a thread, which may not wait for ever, on a simulator that is no other's.
fn within_limit(test: impl FnOnce(&Sim, &Context) + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let sim = Sim::builder().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        test(&sim, &context);
        context.driver().on_release_failure(|_| {});
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}

/// Calls a function when it is dropped.
struct Dropped<F: FnMut()>(F);

impl<F: FnMut()> Drop for Dropped<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Has a mapping of other memory wait to be released, with a guard that is dropped then.
fn put_off(stream: &Stream, guard: impl Send + Sync + 'static) {
    let device = stream.context().device();
    let page = vmm::granularity(device).unwrap();
    let memory =
        ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
    let descriptor = memory.export_posix_fd().unwrap();
    let mut mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device]).unwrap();
    mapping.drop_after_unmap(guard);
    drop(mapping.on(stream).unwrap());
    let capture = Capture::begin(stream, RELAXED);
    drop(mapping);
    drop(capture.end().unwrap());
}

/// What an owner has dropped is the program's, and waits for whatever lock it likes.
#[test]
fn what_waits_is_not_released_under_the_locks_of_who_reports_late() {
    within_limit(|_, context| {
        let books = Arc::new(Mutex::new(0));
        let count = || {
            let books = Arc::clone(&books);
            Dropped(move || *books.lock().unwrap() += 1)
        };
        let stream = Stream::new(context).unwrap();
        let pages = SharedMapping::create(4096).unwrap().pages(count());
        let registered = Registered::new(context, pages, RegisterFlags::PORTABLE).unwrap();
        put_off(&stream, count());
        let reports = LateReports::new();
        let locked = books.lock().unwrap();
        let _pinned = PinnedBuffer::<u8>::zeroed(context, 1, PinnedFlags::default()).unwrap();
        assert_eq!((context.driver().reclaim(), *locked), (1, 0));
        drop(registered);
        drop(locked);
        drop(reports);
        assert_eq!(context.driver().reclaim(), 0);
        let start = Instant::now();
        while *books.lock().unwrap() < 2 {
            assert!(start.elapsed() < LIMIT, "both go");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Whatever call comes upon it: what the driver has current in the thread, and how it treats captures, is the caller's own.
#[test]
fn what_waits_is_released_in_a_thread_as_its_caller_has_it() {
    within_limit(|_, context| {
        let (driver, stream) = (context.driver(), Stream::new(context).unwrap());
        let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(0));
        let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
        let pool = Arc::new(MemoryPool::create(driver, &properties).unwrap());
        type Call<'c> = &'c (dyn Fn() -> Box<dyn Any> + Sync);
        let calls: [(&str, Call<'_>); 4] = [
            ("pinned", &|| {
                Box::new(PinnedBuffer::<u8>::zeroed(context, 16, PinnedFlags::default()).unwrap())
            }),
            ("managed", &|| Box::new(ManagedBuffer::<u8>::zeroed(context, 16).unwrap())),
            ("device", &|| Box::new(DeviceBuffer::<u8>::zeroed(&stream, 16).unwrap())),
            ("pool", &|| Box::new(PoolBlock::allocate(&pool, 16, &stream).unwrap())),
        ];
        for (name, call) in calls {
            let (tell, told) = mpsc::channel();
            put_off(&stream, Dropped(move || tell.send((driver.current_device(), mode(driver))).unwrap()));
            // Kept, because what is dropped looks too. The first look may be too early.
            let look = move || {
                let mut kept = vec![call()];
                loop {
                    match told.try_recv() {
                        Ok(found) => break found,
                        Err(_) => kept.push(call()),
                    }
                }
            };
            let (device, mode) = thread::scope(|scope| scope.spawn(look).join()).unwrap();
            assert_eq!((name, device.unwrap(), mode), (name, None, GLOBAL));
        }
    });
}

/// How a capture of another thread would be treated in this one.
fn mode(driver: Driver) -> CUstreamCaptureMode {
    let exchange = driver.table().cuThreadExchangeStreamCaptureMode().unwrap();
    let mut mode = GLOBAL;
    // SAFETY: one mode to read and write.
    assert_eq!(unsafe { exchange(&mut mode) }, CUresult::CUDA_SUCCESS);
    let mut was = mode;
    // SAFETY: as above.
    assert_eq!(unsafe { exchange(&mut was) }, CUresult::CUDA_SUCCESS);
    mode
}

#[test]
fn who_hears_of_a_failure_records_on_the_line_that_is_recorded_on() {
    within_limit(|sim, context| {
        let (line, stream) = (FenceLine::new(context).unwrap(), Stream::new(context).unwrap());
        for _ in 0..64 {
            // Known to the line's words, which have the last handle then.
            let once = Stream::new(context).unwrap();
            line.record(&once).unwrap();
            once.synchronize().unwrap();
        }
        let (recording, told) = ((line.clone(), stream.clone()), Arc::new(AtomicBool::new(false)));
        let tell = Arc::clone(&told);
        context.driver().on_release_failure(move |_| {
            if !tell.swap(true, Ordering::SeqCst) {
                recording.0.record(&recording.1).unwrap();
            }
        });
        for _ in 0..4 {
            sim.fail_call("cuStreamDestroy", 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        for _ in 0..40 {
            let once = Stream::new(context).unwrap();
            line.record(&once).unwrap();
            once.synchronize().unwrap();
        }
        sim.clear_faults();
        assert!(told.load(Ordering::SeqCst), "a stream's end was refused");
    });
}

#[test]
fn who_hears_of_a_failure_has_a_stream_wait_while_nothing_is_awaited() {
    within_limit(|sim, context| {
        let (line, stream) = (FenceLine::new(context).unwrap(), Stream::new(context).unwrap());
        let waiting = (line.fence(1).unwrap(), stream.clone());
        let (heard, told) = mpsc::channel();
        let heard = Mutex::new(heard);
        context.driver().on_release_failure(move |_| {
            waiting.0.make_wait(&waiting.1).unwrap();
            heard.lock().unwrap().send(()).unwrap();
        });
        let other = Stream::new(context).unwrap();
        for _ in 0..2 {
            sim.fail_call("cuStreamDestroy", 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        context.driver().while_idle(|| drop(other)).unwrap();
        told.recv_timeout(LIMIT).unwrap();
        sim.clear_faults();
        line.poison();
        stream.synchronize().unwrap();
    });
}

#[test]
fn who_hears_of_a_handle_that_stays_wakes_its_mapping() {
    within_limit(|sim, context| {
        let device = context.device();
        let page = vmm::granularity(device).unwrap();
        let memory =
            || ShareableMemory::create(device, page, &CreateOptions::supported_by(device).unwrap()).unwrap();
        // SAFETY: nobody uses it.
        let mapping = Arc::new(unsafe { ImportedMapping::reserve(device, page) }.unwrap());
        mapping.wake(memory().into_memory(), &[device]).unwrap();
        let (waking, next) = (Arc::downgrade(&mapping), Mutex::new(Some(memory().into_memory())));
        context.driver().on_release_failure(move |_| {
            if let Some(memory) = next.lock().unwrap().take() {
                waking.upgrade().unwrap().wake(memory, &[device]).unwrap();
            }
        });
        for _ in 0..2 {
            sim.fail_call("cuMemRelease", 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        // SAFETY: nobody uses it.
        unsafe { mapping.sleep() }.unwrap();
        sim.clear_faults();
        assert!(mapping.is_awake());
    });
}

/// Memory that others use who are waited for by a copy of the same scope.
struct Copies<'s, 'e> {
    scope: &'s copy::Scope<'s, 'e>,
    source: &'e [u8],
    target: &'e DeviceBuffer<u8>,
}

impl fmt::Debug for Copies<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Copies")
    }
}

impl UsedElsewhere for Copies<'_, '_> {
    fn order(&self, stream: &Stream) -> cuda_mem_core::Result<()> {
        self.scope.upload(stream, self.source, &self.target.whole())
    }
}

#[derive(Debug)]
struct PanickingOrder;

impl UsedElsewhere for PanickingOrder {
    fn order(&self, _: &Stream) -> cuda_mem_core::Result<()> {
        panic!("an order that panics");
    }
}

#[test]
fn what_a_transfer_was_given_is_dropped_if_the_order_panics() {
    within_limit(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stream, 64).unwrap();
        let source = Registered::new(context, vec![7u8; 64], RegisterFlags::PORTABLE).unwrap();
        let target = buffer.whole().behind(&PanickingOrder);
        let upload = AssertUnwindSafe(|| Transfer::upload(&stream, source, &target).map(drop));
        assert!(catch_unwind(upload).is_err());
        assert!(!sim.leaks().iter().any(|leak| leak.what.contains("host")), "{:?}", sim.leaks());
    });
}

#[test]
fn what_a_copy_waits_for_besides_copies_in_the_same_scope() {
    within_limit(|_, context| {
        let stream = Stream::new(context).unwrap();
        let source = vec![7; 100_000];
        let [first, second] = [(); 2].map(|()| DeviceBuffer::<u8>::zeroed(&stream, source.len()).unwrap());
        copy::scope(context, |scope| {
            let copies = Copies { scope, source: &source, target: &second };
            // Without a point of the stream, and with one.
            scope.upload(&stream, &source, &first.whole().behind(&copies))?;
            scope.upload(&stream, &source, &first.whole().behind(&copies))
        })
        .unwrap();
        for buffer in [first, second] {
            assert_eq!(buffer.to_vec(&stream).unwrap(), source);
        }
    });
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a task's wake that panics");
    }
}

struct Tells(Mutex<mpsc::Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        // The test may have ended.
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn a_task_whose_wake_panics_keeps_no_other_one_asleep() {
    within_limit(|_, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
        let gate = Gate::before(&stream);
        let mut transfer = pin!(Transfer::upload(&stream, vec![0_u8; 100], &buffer.whole()).unwrap());
        let (tell, told) = mpsc::channel();
        let panics = Waker::from(Arc::new(Panics));
        assert!(matches!(transfer.as_mut().poll(&mut Task::from_waker(&panics)), Poll::Pending));
        thread::sleep(Duration::from_millis(20));
        let tells = Waker::from(Arc::new(Tells(Mutex::new(tell))));
        assert!(matches!(transfer.as_mut().poll(&mut Task::from_waker(&tells)), Poll::Pending));
        told.recv_timeout(LIMIT).unwrap();
        gate.open();
        stream.synchronize().unwrap();
    });
}

/// Has the driver refuse to leave a context the next time, as often as it is asked, and `hears` told of that.
fn refuse_to_leave(
    sim: &Sim,
    context: &Context,
    hears: impl Fn() + Send + Sync + 'static,
) -> Arc<AtomicBool> {
    let heard = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&heard);
    context.driver().on_release_failure(move |_| {
        hears();
        told.store(true, Ordering::Relaxed);
    });
    for call in [1, 1] {
        sim.fail_call("cuCtxPopCurrent", call, CUresult::CUDA_ERROR_UNKNOWN);
    }
    heard
}

/// Asked for its work, a stream's context is made current and left again.
#[test]
fn who_hears_of_a_context_that_is_not_left_makes_a_stream() {
    within_limit(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
        let of = context.clone();
        let heard = refuse_to_leave(sim, context, move || drop(Stream::new(&of).unwrap()));
        buffer.synchronize().unwrap();
        assert!(heard.load(Ordering::Relaxed));
    });
}

#[test]
fn who_hears_of_a_context_that_is_not_left_waits_for_the_memory() {
    within_limit(|sim, context| {
        let streams: Vec<_> = (0..34).map(|_| Stream::new(context).unwrap()).collect();
        let buffer = Arc::new(DeviceBuffer::<u8>::zeroed(&streams[0], 100).unwrap());
        let read = |stream: &Stream| drop(buffer.on_read(stream).unwrap());
        streams[..33].iter().for_each(read);
        let of = Arc::clone(&buffer);
        let heard = refuse_to_leave(sim, context, move || of.synchronize().unwrap());
        // So many are looked at whether they have ended.
        read(&streams[33]);
        assert!(heard.load(Ordering::Relaxed));
        context.driver().on_release_failure(|_| {});
    });
}

/// Memory that other processes have too is unregistered alone, by who looks at all streams.
#[test]
fn who_hears_of_a_context_that_is_not_left_waits_for_a_word() {
    within_limit(|sim, context| {
        let (stream, line) = (Stream::new(context).unwrap(), FenceLine::new(context).unwrap());
        let pages = SharedMapping::create(4096).unwrap().pages(());
        let registered = Registered::new(context, pages, RegisterFlags::default()).unwrap();
        let heard = refuse_to_leave(sim, context, move || {
            line.record(&stream).unwrap().make_wait(&stream).unwrap();
        });
        drop(registered);
        assert!(heard.load(Ordering::Relaxed));
    });
}

/// In a call that names the stream, and in the one that says that its owner destroys it.
#[test]
fn who_hears_of_a_context_that_is_not_left_disowns_the_stream() {
    for is_disowned in [false, true] {
        within_limit(move |sim, context| {
            let theirs = Stream::new(context).unwrap();
            // SAFETY: it is there until the test ends.
            let stream = unsafe { Stream::borrow_raw(context, theirs.as_raw()) }.unwrap();
            let buffer = DeviceBuffer::<u8>::zeroed(&theirs, 100).unwrap();
            let of = stream.clone();
            let heard = refuse_to_leave(sim, context, move || of.disown());
            if is_disowned {
                stream.disown();
            } else {
                buffer.whole().fill_bytes(&stream, 7).unwrap();
            }
            assert!(heard.load(Ordering::Relaxed));
            assert!(matches!(stream.is_idle(), Err(Error::Disowned)));
        });
    }
}

/// The default pool is made current where the one was that goes. Whichever call fails, and once more.
#[test]
fn who_hears_of_a_pool_s_end_makes_a_pool() {
    within_limit(|sim, context| {
        let driver = context.driver();
        let (location, allocation_type) = (MemoryLocation::Device(0), AllocationType::Pinned);
        let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
        let told = Arc::new(AtomicUsize::new(0));
        let tell = Arc::clone(&told);
        driver.on_release_failure(move |_| {
            drop(MemoryPool::create(driver, &properties).unwrap());
            tell.fetch_add(1, Ordering::Relaxed);
        });
        for call in 1..=6 {
            let pool = MemoryPool::create(driver, &properties).unwrap();
            pool.make_current(location, allocation_type).unwrap();
            for _ in 0..2 {
                sim.fail_call("cuThreadExchangeStreamCaptureMode", call, CUresult::CUDA_ERROR_UNKNOWN);
            }
            drop(pool);
            sim.clear_faults();
        }
        assert!(told.load(Ordering::Relaxed) > 1);
    });
}

/// By another handle of the same pages.
#[test]
fn who_hears_of_a_registration_s_call_registers_the_memory_too() {
    within_limit(|sim, context| {
        let mapping = SharedMapping::create(4096).unwrap();
        let registered = |of: &Context, pages| Registered::new(of, pages, RegisterFlags::default()).unwrap();
        let (of, pages) = (context.clone(), Mutex::new(vec![mapping.pages(()), mapping.pages(())]));
        let heard = refuse_to_leave(sim, context, move || {
            let next = pages.lock().unwrap().pop();
            next.into_iter().for_each(|pages| drop(registered(&of, pages).close().unwrap()));
        });
        let held = registered(context, mapping.pages(()));
        assert!(heard.swap(false, Ordering::Relaxed));
        // The one that leaves the relaxed mode.
        for _ in 0..2 {
            sim.fail_call("cuThreadExchangeStreamCaptureMode", 2, CUresult::CUDA_ERROR_UNKNOWN);
        }
        drop(held.close().unwrap());
        assert!(heard.load(Ordering::Relaxed));
    });
}

/// A stager asks whether its copies are done. The ring's only slot is under way.
#[test]
fn who_hears_of_a_mode_that_is_not_left_copies_by_the_same_stager() {
    within_limit(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let stager = Stager::builder(context).threads(1).slots(1).build().unwrap();
        let buffer = Arc::new(DeviceBuffer::<u8>::zeroed(&stream, 100_000).unwrap());
        let copy = {
            let (stager, stream, buffer) = (stager.clone(), stream.clone(), Arc::clone(&buffer));
            move |value| stager.upload(&stream, &vec![value; 100_000], &buffer.whole()).unwrap()
        };
        copy(1);
        let (again, heard) = (copy.clone(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&heard);
        context.driver().on_release_failure(move |_| {
            again(2);
            told.store(true, Ordering::Relaxed);
        });
        // The one that leaves the relaxed mode.
        for _ in 0..2 {
            sim.fail_call("cuThreadExchangeStreamCaptureMode", 2, CUresult::CUDA_ERROR_UNKNOWN);
        }
        copy(3);
        assert!(heard.load(Ordering::Relaxed));
        assert_eq!(buffer.to_vec(&stream).unwrap(), vec![3; 100_000]);
    });
}
