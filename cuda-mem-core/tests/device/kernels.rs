//! Kernels on buffers: `on` is all that orders them.

use cuda_mem_core::host::{RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, ManagedBuffer};

use crate::common::World;
use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::common::outcome::record;

const COUNT: u64 = 10_007;
const LEN: usize = COUNT as usize;

#[test]
fn kernels_of_several_streams_run_in_the_order_of_their_uses() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let (one, two, three) = (world.new_stream(), world.new_stream(), world.new_stream());
    let buffer = DeviceBuffer::<u32>::uninit(&world.stream, LEN).unwrap();
    let gate = Gate::before(&one);
    {
        let words = buffer.on(&one).unwrap();
        // SAFETY: the buffer knows that this stream uses it.
        unsafe { kernels.fill_u32(&one, words.address(), COUNT, 5) };
    }
    for stream in [&two, &three, &two] {
        let words = buffer.on(stream).unwrap();
        // SAFETY: as above.
        unsafe { kernels.add_one_u32(stream, words.address(), COUNT) };
    }
    assert!(!two.is_idle().unwrap() && !three.is_idle().unwrap());
    gate.open();
    let words = buffer.to_vec(&world.stream).unwrap();
    record!("words", &words);
    assert_eq!(words, [8; LEN]);
}

#[test]
fn a_buffer_dropped_in_use_is_freed_after_its_users() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let (one, two) = (world.new_stream(), world.new_stream());
    let source = DeviceBuffer::<u32>::uninit(&world.stream, LEN).unwrap();
    let target = DeviceBuffer::<u32>::zeroed(&world.stream, LEN).unwrap();
    let gate = Gate::before(&one);
    {
        let words = source.on(&one).unwrap();
        // SAFETY: the buffer knows that this stream uses it.
        unsafe { kernels.fill_u32(&one, words.address(), COUNT, 77) };
    }
    {
        let (from, to) = (source.on_read(&two).unwrap(), target.on(&two).unwrap());
        // SAFETY: both buffers know that this stream uses them.
        unsafe { kernels.copy_u8(&two, to.address(), from.address(), 4 * COUNT) };
    }
    drop((source, one, two));
    // What was freed must not come back before the streams above are through with it.
    let reused = DeviceBuffer::<u32>::uninit(&world.stream, LEN).unwrap();
    reused.whole().fill_bytes(&world.stream, 0xff).unwrap();
    gate.open();
    assert_eq!(target.to_vec(&world.stream).unwrap(), [77; LEN]);
}

#[test]
fn a_kernel_writes_registered_memory_in_place() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let stream = world.new_stream();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let registered = Registered::new(&world.context, vec![1u32; LEN], flags).unwrap();
    {
        let words = registered.on(&stream).unwrap();
        // SAFETY: the memory knows that this stream uses it.
        unsafe { kernels.add_one_u32(&stream, words.address(), COUNT) };
    }
    assert_eq!(registered.close().unwrap(), [2; LEN]);
}

#[test]
fn a_kernel_writes_managed_memory() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let stream = world.new_stream();
    let mut managed = ManagedBuffer::<u32>::zeroed(&world.context, LEN).unwrap();
    managed.as_mut_slice().unwrap().fill(40);
    for _ in 0..2 {
        let words = managed.on(&stream).unwrap();
        // SAFETY: the buffer knows that this stream uses it.
        unsafe { kernels.add_one_u32(&stream, words.address(), COUNT) };
    }
    assert_eq!(managed.as_slice().unwrap(), [42; LEN]);
}

#[test]
fn a_running_kernel_holds_up_the_free_and_not_the_host() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let stream = world.new_stream();
    let frees_while_it_runs = |millis| {
        let buffer = DeviceBuffer::<u32>::zeroed(&world.stream, LEN).unwrap();
        let word =
            Registered::new(&world.context, vec![0u32; 1], RegisterFlags::PORTABLE | RegisterFlags::MAPPED)
                .unwrap();
        {
            let (words, flag) = (buffer.on(&stream).unwrap(), word.on(&stream).unwrap());
            kernels.spin(&stream, std::time::Duration::from_millis(millis));
            // SAFETY: the buffer knows that this stream uses it.
            unsafe { kernels.fill_u32(&stream, words.address(), COUNT, 1) };
            // SAFETY: as above, of the word.
            unsafe { kernels.fill_u32(&stream, flag.address(), 1, 9) };
            // SAFETY: as above; the stream itself has set the word before.
            unsafe { kernels.spin_until_u32(&stream, flag.address(), 9) };
        }
        drop(buffer);
        let runs = !stream.is_idle().unwrap();
        assert_eq!(word.as_slice().unwrap(), [9]);
        runs
    };
    // A host that is slow itself comes too late for a short kernel; one that waits does for each.
    assert!([20, 200, 2000, 20_000].into_iter().any(frees_while_it_runs));
}
