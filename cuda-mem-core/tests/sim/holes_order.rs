//! Holes that are a missing wait: the log shows the wait.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_mem_core::host::{HostMemory, PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{
    Context, DeviceBuffer, Error, ManagedBuffer, PinnedBuffer, Stream, Transfer, copy, scope,
};
use cuda_mem_sim::Sim;

use crate::common::gate::Gate;
use crate::rig::{host_waited, log_of, on_simulator, position, read_on, text, waited};

const LEN: usize = 5000;

fn stream(context: &Context) -> Stream {
    Stream::new(context).unwrap()
}

fn device(stream: &Stream) -> DeviceBuffer<u8> {
    DeviceBuffer::zeroed(stream, LEN).unwrap()
}

/// A copy between any two buffers, in the shape of a kernel that somebody else launches.
fn copy_on(stream: &Stream, to: u64, from: u64) {
    // SAFETY: the caller has told both buffers that this stream uses them.
    unsafe { copy::memcpy_async(stream, to, from, LEN) }.unwrap();
}

#[test]
fn the_simulator_sees_what_these_tests_are_about() {
    let sim = Sim::builder().build();
    let driver = cuda_mem_core::Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let (home, reader) = (stream(&context), stream(&context));
    let (buffer, target) = (device(&home), device(&reader));
    home.synchronize().unwrap();
    // A use that the buffer is not told of, as the crates with these holes have them.
    copy_on(&reader, target.as_raw(), buffer.as_raw());
    drop(buffer);
    assert_eq!(sim.misuse().len(), 1, "{:?}", sim.misuse());
}

#[test]
fn c1_every_reader_is_waited_for() {
    on_simulator(|sim, context| {
        let (home, one, two) = (stream(context), stream(context), stream(context));
        let (buffer, first, second) = (device(&home), device(&home), device(&home));
        let records = log_of(&sim.log(), || {
            read_on(&buffer, &one, &first);
            read_on(&buffer, &two, &second);
            drop(buffer);
        });
        let free = position(&records, "cuMemFreeAsync");
        assert_eq!(records[free].stream, home.id().as_raw());
        for reader in [&one, &two] {
            let is_copy = |index: &usize| {
                records[*index].function == "cuMemcpyAsync" && records[*index].stream == reader.id().as_raw()
            };
            let copied = (0..free).find(is_copy).unwrap();
            assert!(waited(&records, reader, &home, copied, free), "{}", text(&records));
        }
    });
}

#[test]
fn c2_a_use_is_remembered_without_its_stream() {
    on_simulator(|sim, context| {
        let home = stream(context);
        let (buffer, target) = (device(&home), device(&home));
        let user = stream(context);
        let id = user.id().as_raw();
        let records = log_of(&sim.log(), || {
            read_on(&buffer, &user, &target);
            drop(user);
            drop(buffer);
            drop(target);
        });
        // The stream is alive for as long as somebody may have to wait for it.
        let last_free = records.iter().rposition(|record| record.function == "cuMemFreeAsync").unwrap();
        let first_free = position(&records[..last_free], "cuMemFreeAsync");
        let recorded =
            |record: &cuda_mem_sim::Record| record.function == "cuEventRecord" && record.stream == id;
        assert!(records[..first_free].iter().any(recorded), "{}", text(&records));
        let destroyed = position(&records, "cuStreamDestroy");
        assert!(destroyed > first_free, "{}", text(&records));
    });
}

#[test]
fn c3_a_copy_into_pinned_memory_is_complete_when_its_slice_is_seen() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        let mut pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default()).unwrap();
        let records =
            log_of(&sim.log(), || buffer.copy_to_slice(&stream, pinned.as_mut_slice().unwrap()).unwrap());
        let copied = position(&records, "cuMemcpyAsync");
        assert!(host_waited(&records, &stream, copied, records.len()), "{}", text(&records));

        let records =
            log_of(&sim.log(), || drop(Transfer::download(&stream, &buffer.whole(), pinned).unwrap()));
        let copied = position(&records, "cuMemcpyAsync");
        let freed = position(&records, "cuMemFreeHost");
        assert!(host_waited(&records, &stream, copied, freed), "{}", text(&records));
    });
}

#[test]
fn c3_memory_that_somebody_else_registered_is_waited_for_too() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        let mut target = vec![1u8; LEN];
        let table = sim.table();
        let address = target.as_mut_ptr().cast();
        // SAFETY: memory that lives until it is unregistered below; the context is current.
        let register = || unsafe { table.cuMemHostRegister().unwrap()(address, LEN, 0) };
        assert_eq!(context.with_current(register).unwrap(), CUresult::CUDA_SUCCESS);
        let records = log_of(&sim.log(), || buffer.copy_to_slice(&stream, &mut target).unwrap());
        let copied = position(&records, "cuMemcpyAsync");
        assert!(host_waited(&records, &stream, copied, records.len()), "{}", text(&records));
        // SAFETY: registered above.
        let unregister = || unsafe { table.cuMemHostUnregister().unwrap()(address) };
        assert_eq!(context.with_current(unregister).unwrap(), CUresult::CUDA_SUCCESS);
        assert_eq!(target, [0; LEN]);
    });
}

#[test]
fn c6_a_per_thread_stream_is_never_taken_for_another_threads() {
    on_simulator(|sim, context| {
        let own = Stream::per_thread(context).unwrap();
        let buffer = device(&own);
        let records = log_of(&sim.log(), || {
            buffer.whole().fill_bytes(&own, 7).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(matches!(buffer.whole().fill_bytes(&own, 8), Err(Error::WrongThread)));
                    assert!(matches!(own.synchronize(), Err(Error::WrongThread)));
                    drop(buffer);
                });
            });
        });
        // There is no name for the stream in the other thread: the host waits for its last use, then frees.
        let (filled, freed) = (position(&records, "cuMemsetD8Async"), position(&records, "cuMemFree"));
        assert!(host_waited(&records, &own, filled, freed), "{}", text(&records));
        let other = records[freed].thread;
        assert_ne!(records[filled].thread, other);
        assert!(
            records.iter().all(|record| record.thread != other || record.stream == 0),
            "{}",
            text(&records)
        );
    });
}

/// What one use has ended with says nothing of another that goes on.
#[test]
fn c6_a_use_that_ends_beside_another_of_a_threads_stream_leaves_no_point() {
    on_simulator(|_, context| {
        let own = Stream::per_thread(context).unwrap();
        let pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default()).unwrap();
        let (buffer, other) = (device(&own), stream(context));
        let gate = Gate::new(context);
        let outer = (pinned.on(&own).unwrap(), buffer.on(&own).unwrap());
        drop((pinned.on(&own).unwrap(), buffer.on(&own).unwrap()));
        gate.hold(&own);
        copy_on(&own, outer.0.address(), outer.1.address());
        let _forgotten = std::mem::ManuallyDrop::new(outer);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                assert!(matches!(pinned.as_slice(), Err(Error::WrongThread)));
                assert!(matches!(buffer.on(&other).map(drop), Err(Error::WrongThread)));
            });
        });
        gate.open();
        own.synchronize().unwrap();
    });
}

#[test]
fn c8_the_host_waits_before_it_unregisters() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
        for close in [true, false] {
            let registered = Registered::new(context, vec![0u8; LEN], flags).unwrap();
            let records = log_of(&sim.log(), || {
                {
                    let (from, to) = (buffer.on_read(&stream).unwrap(), registered.on(&stream).unwrap());
                    copy_on(&stream, to.address(), from.address());
                }
                if close { drop(registered.close().unwrap()) } else { drop(registered) }
            });
            let (copied, undone) =
                (position(&records, "cuMemcpyAsync"), position(&records, "cuMemHostUnregister"));
            assert!(host_waited(&records, &stream, copied, undone), "{}", text(&records));
        }
    });
}

#[test]
fn k1_closing_waits_for_users_on_other_streams() {
    on_simulator(|sim, context| {
        let (home, user) = (stream(context), stream(context));
        let buffer = device(&home);
        let records = log_of(&sim.log(), || {
            buffer.whole().fill_bytes(&user, 1).unwrap();
            buffer.close().unwrap();
        });
        let (filled, freed) = (position(&records, "cuMemsetD8Async"), position(&records, "cuMemFreeAsync"));
        assert!(waited(&records, &user, &home, filled, freed), "{}", text(&records));
    });
}

#[test]
fn k2_the_host_waits_before_it_frees_pinned_memory() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        for close in [true, false] {
            let pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::default()).unwrap();
            let records = log_of(&sim.log(), || {
                {
                    let (from, to) = (buffer.on_read(&stream).unwrap(), pinned.on(&stream).unwrap());
                    copy_on(&stream, to.address(), from.address());
                }
                if close { pinned.close().unwrap() } else { drop(pinned) }
            });
            let (copied, freed) = (position(&records, "cuMemcpyAsync"), position(&records, "cuMemFreeHost"));
            assert!(host_waited(&records, &stream, copied, freed), "{}", text(&records));
        }
    });
}

#[test]
fn k2_the_host_waits_before_it_frees_managed_memory() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        for close in [true, false] {
            let managed = ManagedBuffer::<u8>::zeroed(context, LEN).unwrap();
            let records = log_of(&sim.log(), || {
                {
                    let (from, to) = (buffer.on_read(&stream).unwrap(), managed.on(&stream).unwrap());
                    copy_on(&stream, to.address(), from.address());
                }
                if close { managed.close().unwrap() } else { drop(managed) }
            });
            let (copied, freed) = (position(&records, "cuMemcpyAsync"), position(&records, "cuMemFree"));
            assert!(host_waited(&records, &stream, copied, freed), "{}", text(&records));
        }
    });
}

#[test]
fn k3_a_slice_of_memory_that_the_device_wrote_comes_after_a_wait() {
    on_simulator(|sim, context| {
        let stream = stream(context);
        let buffer = device(&stream);
        let managed = ManagedBuffer::<u8>::zeroed(context, LEN).unwrap();
        let registered = Registered::new(context, vec![1u8; LEN], RegisterFlags::MAPPED).unwrap();
        let pinned = PinnedBuffer::<u8>::zeroed(context, LEN, PinnedFlags::MAPPED).unwrap();
        type Slice<'s> = &'s dyn Fn() -> usize;
        let slices: [(u64, Slice<'_>); 3] = [
            (managed.on(&stream).unwrap().address(), &|| managed.as_slice().unwrap().len()),
            (registered.on(&stream).unwrap().address(), &|| registered.as_slice().unwrap().len()),
            (pinned.on(&stream).unwrap().address(), &|| pinned.as_slice().unwrap().len()),
        ];
        for (address, slice) in slices {
            let records = log_of(&sim.log(), || {
                let from = buffer.on_read(&stream).unwrap();
                copy_on(&stream, address, from.address());
                assert_eq!(slice(), LEN);
            });
            let copied = position(&records, "cuMemcpyAsync");
            assert!(host_waited(&records, &stream, copied, records.len()), "{}", text(&records));
        }
        assert_eq!(registered.as_slice().unwrap(), [0; LEN]);
        assert_eq!(pinned.as_ptr().addr() % 8, 0);
    });
}

#[test]
fn n1_memory_is_zero_for_readers_on_every_stream() {
    on_simulator(|sim, context| {
        let (home, reader) = (stream(context), stream(context));
        let records = log_of(&sim.log(), || {
            let buffer = DeviceBuffer::<u8>::zeroed(&home, LEN).unwrap();
            assert_eq!(buffer.to_vec(&reader).unwrap(), [0; LEN]);
        });
        let (zeroed, copied) = (position(&records, "cuMemsetD8Async"), position(&records, "cuMemcpyAsync"));
        assert_eq!(records[copied].stream, reader.id().as_raw());
        assert!(waited(&records, &home, &reader, zeroed, copied), "{}", text(&records));
    });
}

#[test]
fn s1_a_panic_inside_a_scope_waits_for_every_copy() {
    on_simulator(|sim, context| {
        let (one, two) = (stream(context), stream(context));
        let (source, mut target) = (vec![3u8; LEN], vec![0u8; LEN]);
        let buffer = DeviceBuffer::<u8>::uninit(&one, LEN).unwrap();
        let records = log_of(&sim.log(), || {
            let panicking = AssertUnwindSafe(|| {
                scope(context, |scope| -> cuda_mem_core::Result<()> {
                    scope.register(&source)?;
                    scope.upload(&one, &source, &buffer.whole())?;
                    scope.download(&two, &buffer.whole(), &mut target)?;
                    panic!("on purpose");
                })
            });
            assert!(catch_unwind(panicking).is_err());
        });
        let copy_on = |stream: &Stream| {
            let is_copy = |record: &cuda_mem_sim::Record| {
                record.function == "cuMemcpyAsync" && record.stream == stream.id().as_raw()
            };
            records.iter().position(is_copy).unwrap()
        };
        let (up, down) = (copy_on(&one), copy_on(&two));
        let undone = position(&records, "cuMemHostUnregister");
        assert!(host_waited(&records, &one, up, undone), "{}", text(&records));
        assert!(host_waited(&records, &two, down, undone), "{}", text(&records));
        assert_eq!(target, source);
    });
}

#[test]
fn a_writer_that_was_open_when_the_next_began_is_waited_for_by_readers() {
    on_simulator(|sim, context| {
        let (home, late, next, reader) = (stream(context), stream(context), stream(context), stream(context));
        let (buffer, source, target) = (device(&home), device(&late), device(&reader));
        let records = log_of(&sim.log(), || {
            let open = buffer.on(&late).unwrap();
            drop(buffer.on(&next).unwrap());
            let read = source.on_read(&late).unwrap();
            copy_on(&late, open.address(), read.address());
            drop(read);
            drop(open);
            read_on(&buffer, &reader, &target);
        });
        let copied = |stream: &Stream| {
            let id = stream.id().as_raw();
            let is_copy = |record: &cuda_mem_sim::Record| {
                record.function.starts_with("cuMemcpy") && record.stream == id
            };
            records.iter().position(is_copy).unwrap()
        };
        assert!(waited(&records, &late, &reader, copied(&late), copied(&reader)), "{}", text(&records));
    });
}

#[test]
fn readers_that_are_open_do_not_hold_each_other_up() {
    on_simulator(|sim, context| {
        let (home, one, two) = (stream(context), stream(context), stream(context));
        let buffer = device(&home);
        let open = buffer.on_read(&one).unwrap();
        let records = log_of(&sim.log(), || drop(buffer.on_read(&two).unwrap()));
        let recorded = |stream: &Stream| {
            let id = stream.id().as_raw();
            records.iter().filter(|record| record.function == "cuEventRecord" && record.stream == id).count()
        };
        // The second waits for the allocation's stream, and not for the first.
        assert_eq!((recorded(&home), recorded(&one)), (1, 0), "{}", text(&records));
        drop(open);
    });
}
