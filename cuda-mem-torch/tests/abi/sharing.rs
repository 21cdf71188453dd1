//! Blocks for other processes, of which this one plays both.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::copy::memcpy_async;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::{
    CUmemLocation, CUmemLocationType, CUresult,
};
use cuda_mem_torch::cuda_mem_ipc::transport::MAX_DESCRIPTORS;

use super::support::*;
use super::symm::{free, join, leave, malloc};

/// The format's version of PyTorch 2.11.
const VERSION: u8 = 2;

fn share(block: *mut c_void) -> (Vec<u8>, usize) {
    let (mut length, mut offset) = (0, 0);
    // SAFETY: two places.
    succeed(unsafe { cuda_mem_torch_ipc_share(block, VERSION, null_mut(), 0, &mut length, &mut offset) });
    let mut bytes = vec![0; length];
    // SAFETY: room for all of it, and two places.
    succeed(unsafe {
        cuda_mem_torch_ipc_share(block, VERSION, bytes.as_mut_ptr(), bytes.len(), &mut length, &mut offset)
    });
    (bytes, offset)
}

fn is_mapped(address: *mut c_void) -> bool {
    let ask = driver().table().cuMemGetAddressRange().unwrap();
    let (mut base, mut bytes) = (0, 0);
    let asked = context().with_current(|| {
        // SAFETY: two values to write.
        unsafe { ask(&mut base, &mut bytes, address.addr() as u64) }
    });
    asked.unwrap() == CUresult::CUDA_SUCCESS
}

fn open(handle: &[u8]) -> *mut c_void {
    let mut base = null_mut();
    // SAFETY: the bytes and a place.
    succeed(unsafe { cuda_mem_torch_ipc_open(0, handle.as_ptr(), handle.len(), &mut base) });
    base
}

fn close(base: *mut c_void) {
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_ipc_close(base) });
}

fn fill(block: *mut c_void, value: u8, stream: &Stream) {
    let host = [value; 64];
    // SAFETY: 64 bytes each, which live until the stream is done.
    unsafe {
        memcpy_async(stream, block.expose_provenance() as u64, host.as_ptr().expose_provenance() as u64, 64)
    }
    .unwrap();
    stream.synchronize().unwrap();
}

fn read(address: *mut c_void, stream: &Stream) -> [u8; 64] {
    let mut seen = [0u8; 64];
    // SAFETY: 64 bytes each, which live until the stream is done.
    unsafe {
        memcpy_async(
            stream,
            seen.as_mut_ptr().expose_provenance() as u64,
            address.expose_provenance() as u64,
            64,
        )
    }
    .unwrap();
    stream.synchronize().unwrap();
    seen
}

/// The numbers of the descriptors in a handle.
fn descriptors(handle: &[u8]) -> Vec<i32> {
    let count = usize::try_from(u64::from_ne_bytes(handle[18..26].try_into().unwrap())).unwrap();
    handle[26..26 + 4 * count]
        .chunks(4)
        .map(|number| i32::from_ne_bytes(number.try_into().unwrap()))
        .collect()
}

/// What a descriptor of this process is of, if it is open.
fn file(descriptor: i32) -> Option<u64> {
    fs::metadata(format!("/proc/self/fd/{descriptor}")).ok().map(|file| file.ino())
}

#[test]
fn a_shared_block_is_seen_by_who_opens_it() {
    let _turn = turn();
    let stream = new_stream();
    let block = allocate(3 * MIB, stream.as_raw());
    fill(block, 4, stream);
    let (bytes, offset) = share(block);
    assert_eq!(bytes[..2], [2, b'e'], "PyTorch's version, and its kind");
    let base = open(&bytes);
    assert_eq!(base, open(&bytes), "the same bytes are opened once");
    assert_eq!(read(base.cast::<u8>().wrapping_add(offset).cast(), stream), [4; 64]);
    close(base);
    close(base);
    // SAFETY: closed, which is found out.
    assert_eq!(unsafe { cuda_mem_torch_ipc_close(base) }, CUDA_MEM_TORCH_NOT_OURS);
    delete(block);
    succeed(cuda_mem_torch_synchronize(0));
    empty_cache(NO_POOL);
    let mut base = null_mut();
    // SAFETY: its descriptors are closed, which is found out.
    let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) };
    assert_eq!(code, CUDA_MEM_TORCH_SYSTEM, "{}", message());
    assert!(message().contains("its socket says that the memory has gone"), "{}", message());
}

/// Each tensor had descriptors of its own, so that a model of more than a thousand tensors had none left.
#[test]
fn a_handle_has_one_descriptor_however_many_blocks_are_shared() {
    let _turn = turn();
    let stream = new_stream();
    let blocks: Vec<_> = (0..200).map(|_| allocate(MIB, stream.as_raw())).collect();
    let mut all = BTreeSet::new();
    for _ in 0..2 {
        for block in &blocks {
            all.extend(descriptors(&share(*block).0));
        }
    }
    // The smallest handles there are have two or more of these blocks.
    assert!(all.len() <= 100, "{} descriptors", all.len());
    let files: Vec<_> = all.iter().map(|descriptor| file(*descriptor).unwrap()).collect();
    blocks.into_iter().for_each(delete);
    succeed(cuda_mem_torch_synchronize(0));
    empty_cache(NO_POOL);
    let left = all.iter().zip(files).filter(|(descriptor, of)| file(**descriptor) == Some(*of));
    assert_eq!(left.count(), 0, "descriptors keep memory that was given back");
}

/// An importer that may not trace this process asks it over the socket that the handle names.
#[test]
fn what_may_not_be_taken_is_asked_for() {
    let _turn = turn();
    let stream = new_stream();
    // In more handles than a message carries descriptors.
    let block = allocate(4000 * MIB, stream.as_raw());
    fill(block, 9, stream);
    let (mut bytes, offset) = share(block);
    // Numbers that are no descriptors of this process: as if `pidfd_getfd` were refused.
    let count = descriptors(&bytes).len();
    assert!(count > MAX_DESCRIPTORS, "{count}");
    for place in 0..count {
        bytes[26 + 4 * place..][..4].copy_from_slice(&i32::MAX.to_ne_bytes());
    }
    let base = open(&bytes);
    assert_eq!(read(base.cast::<u8>().wrapping_add(offset).cast(), stream), [9; 64]);
    close(base);
    // Without the trailer there is nobody to ask, and both are said.
    bytes.truncate(26 + 4 * count);
    let mut base = null_mut();
    // SAFETY: the bytes and a place.
    let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) };
    assert_eq!(code, CUDA_MEM_TORCH_SYSTEM);
    assert!(message().contains("pidfd_getfd") && message().contains("it named no socket"), "{}", message());
    delete(block);
}

/// PyTorch's own reader reserves more than the device has for each import.
#[test]
fn an_import_reserves_what_it_maps() {
    let _turn = turn();
    let block = allocate(3 * MIB, new_stream().as_raw());
    let (bytes, _) = share(block);
    let of_handles = u64::from_ne_bytes(bytes[10..18].try_into().unwrap()) * descriptors(&bytes).len() as u64;
    sim().log().clear();
    sim().record(true);
    let base = open(&bytes);
    sim().record(false);
    let mut reserved = sim().log().records();
    reserved.retain(|record| record.function == "cuMemAddressReserve");
    let [reserved] = &reserved[..] else { panic!("{reserved:?}") };
    assert!(reserved.arguments.contains(&format!("size={of_handles}")), "{reserved}");
    close(base);
    delete(block);
}

/// Memory of a pool is told of as PyTorch's own allocator tells of its memory, which opens it.
#[test]
fn a_pools_block_is_told_of_by_the_drivers_handle() {
    let _turn = turn();
    let (stream, pool) = (new_stream(), user_pool());
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let [first, second] = [MIB, MIB].map(|bytes| allocate(bytes, stream.as_raw()));
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let (bytes, offset) = share(second);
    assert_eq!((&bytes[..2], bytes.len(), offset), (&[2, b'c'][..], 66, MIB));
    let mut base = null_mut();
    // SAFETY: the bytes and a place.
    let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) };
    assert_eq!(code, CUDA_MEM_TORCH_NOT_OURS);
    [first, second].into_iter().for_each(delete);
    succeed(cuda_mem_torch_release_pool(0, pool));
}

/// A pool's segment, as a source has it that asks the driver.
unsafe extern "C" fn alloc_by_driver(_: *mut c_void, bytes: usize) -> *mut c_void {
    let alloc = driver().table().cuMemAlloc().unwrap();
    let mut address = 0;
    // SAFETY: one address to write.
    let code = context().with_current(|| unsafe { alloc(&mut address, bytes) }).unwrap();
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

unsafe extern "C" fn free_by_driver(_: *mut c_void, address: *mut c_void, _: usize) {
    let free = driver().table().cuMemFree().unwrap();
    // SAFETY: nothing uses it.
    let code = context().with_current(|| unsafe { free(address.addr() as u64) }).unwrap();
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// One that has its segments from memory that is mapped, of which the driver makes no handle by its address.
unsafe extern "C" fn alloc_mapped(_: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: a size.
    unsafe { cuda_mem_torch_alloc(bytes, 0, null_mut()) }
}

unsafe extern "C" fn free_mapped(_: *mut c_void, address: *mut c_void, bytes: usize) {
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(address, bytes, 0, null_mut()) };
}

#[test]
fn memory_of_another_allocator_is_shared_by_the_drivers_handle() {
    let _turn = turn();
    let stream = new_stream().as_raw();
    let by_driver = cuda_mem_torch_source {
        data: null_mut(),
        alloc: Some(alloc_by_driver),
        free: Some(free_by_driver),
        release: None,
    };
    let mapped = cuda_mem_torch_source { alloc: Some(alloc_mapped), free: Some(free_mapped), ..by_driver };
    for (source, is_shared) in [(by_driver, true), (mapped, false)] {
        let pool = user_pool();
        // SAFETY: functions that may be called.
        succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, &source) });
        // SAFETY: no filter.
        succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
        let blocks = [(); 2].map(|()| allocate(3 * MIB, stream));
        succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
        let (first, second) = (blocks[0], blocks[1]);
        if is_shared {
            let ((handle, offset), (of_second, next)) = (share(first), share(second));
            assert_eq!((handle.len(), &handle[..2]), (66, &[2, b'c'][..]));
            assert_eq!((&handle, next - offset), (&of_second, 3 * MIB), "one handle for the whole segment");
            let mut base = null_mut();
            // SAFETY: the bytes and a place.
            let code = unsafe { cuda_mem_torch_ipc_open(0, handle.as_ptr(), handle.len(), &mut base) };
            assert_eq!(code, CUDA_MEM_TORCH_NOT_OURS, "the native allocator opens it");
        } else {
            let (mut length, mut offset) = (0, 0);
            // SAFETY: two places.
            let code =
                unsafe { cuda_mem_torch_ipc_share(first, VERSION, null_mut(), 0, &mut length, &mut offset) };
            assert!(
                code == CUDA_MEM_TORCH_UNSUPPORTED && message().contains("Share a copy"),
                "{}",
                message()
            );
        }
        blocks.into_iter().for_each(delete);
        succeed(cuda_mem_torch_release_pool(0, pool));
        succeed(cuda_mem_torch_release_pool(0, pool));
        succeed(cuda_mem_torch_synchronize(0));
        empty_cache(pool);
    }
    cuda_mem_torch_enable(false);
    let uncached = allocate(MIB, stream);
    assert_eq!(share(uncached).0[..2], [2, b'c']);
    delete(uncached);
    cuda_mem_torch_enable(true);
}

#[test]
fn peers_reach_what_another_process_shares() {
    let _turn = turn();
    let may_write = |address: *mut c_void| {
        let ask = driver().table().cuMemGetAccess().unwrap();
        let mut flags = 0;
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
        // SAFETY: one value to write and a location.
        let code = unsafe { ask(&mut flags, &location, address.addr() as u64) };
        assert_eq!(code, CUresult::CUDA_SUCCESS);
        flags != 0
    };
    let (first, second) = (allocate(3 * MIB, null_mut()), allocate(5 * MIB, null_mut()));
    let open = |block| {
        let (bytes, _) = share(block);
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) });
        base
    };
    let before = open(first);
    assert!(!may_write(before), "nobody said that it reaches this device");
    for _ in 0..2 {
        succeed(cuda_mem_torch_enable_peer_access(1, 0));
    }
    let after = open(second);
    assert!(may_write(before) && may_write(after));
    [before, after].into_iter().for_each(close);
    let again = open(first);
    assert_eq!(waits(|| close(again)), 2, "work of the other device may use it too");
    [first, second].into_iter().for_each(delete);
}

#[test]
fn what_is_closed_beside_a_capture_is_not_opened_again() {
    let _turn = turn();
    let (stream, captured) = (new_stream(), new_stream());
    // SAFETY: a live stream.
    succeed(unsafe { cuda_mem_torch_see_stream(0, captured.as_raw()) });
    let block = allocate(3 * MIB, stream.as_raw());
    let (bytes, _) = share(block);
    let open = || {
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) });
        base
    };
    let first = open();
    begin_capture(captured);
    // SAFETY: nothing uses it.
    let closed = unsafe { cuda_mem_torch_ipc_close(first) };
    end_capture(captured);
    succeed(closed);
    // SAFETY: closed, which is found out.
    assert_eq!(unsafe { cuda_mem_torch_ipc_close(first) }, CUDA_MEM_TORCH_NOT_OURS);

    let second = open();
    begin_capture(captured);
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_ipc_close(second) });
    assert!(is_mapped(second));
    let third = open();
    assert_ne!(second, third, "the same bytes may name other memory by now");
    end_capture(captured);
    empty_cache(NO_POOL);
    assert!(!is_mapped(second) && is_mapped(third));
    // SAFETY: nothing uses it.
    succeed(unsafe { cuda_mem_torch_ipc_close(third) });
    assert!(!is_mapped(third));
    delete(block);
}

/// An import fails, and its addresses do not go back: who hears of that asks for what is opened, whose lock the import had.
#[test]
fn who_hears_of_an_import_that_failed_uses_what_is_opened() {
    let _turn = turn();
    let block = allocate(3 * MIB, new_stream().as_raw());
    let (bytes, _) = share(block);
    let (tells, heard) = mpsc::channel();
    driver().on_release_failure(move |_| {
        // SAFETY: it is nothing that was opened, which is found out.
        let code = unsafe { cuda_mem_torch_ipc_close(null_mut()) };
        // Nobody listens any more if it is too late.
        let _ = tells.send(code);
    });
    for function in ["cuMemSetAccess", "cuMemAddressFree", "cuMemAddressFree"] {
        sim().fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
    }
    let opens = thread::spawn(move || {
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) }
    });
    assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(CUDA_MEM_TORCH_NOT_OURS), "it waits for ever");
    assert_ne!(opens.join().unwrap(), CUDA_MEM_TORCH_OK);
    sim().clear_faults();
    driver().on_release_failure(|_| {});
    delete(block);
}

#[test]
fn what_is_no_handle_is_refused() {
    let _turn = turn();
    let mut address = null_mut();
    for bytes in [&[2u8, b'c', 0][..], &[4, b'e'], &[], &[2, b'e', 1]] {
        // SAFETY: the bytes and a place.
        let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut address) };
        assert!(
            matches!(code, CUDA_MEM_TORCH_UNSUPPORTED | CUDA_MEM_TORCH_INVALID_ARGUMENT),
            "{bytes:?}: {code}"
        );
    }
}

#[test]
fn a_handle_says_what_is_wrong_with_it() {
    let _turn = turn();
    let mut address = null_mut();
    let mut open = |bytes: &[u8]| {
        // SAFETY: the bytes and a place.
        let code = unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut address) };
        (code, message())
    };
    let (code, text) = open(&[4, b'e']);
    assert!(code == CUDA_MEM_TORCH_UNSUPPORTED && text.contains("version 4"), "{code}: {text}");
    let (code, text) = open(&[&[2, b'c'][..], &[7; 64]].concat());
    assert!(code == CUDA_MEM_TORCH_NOT_OURS && text.contains("cuMemAlloc"), "{code}: {text}");
    let (code, text) = open(&[2, b'e', 1]);
    assert!(code == CUDA_MEM_TORCH_INVALID_ARGUMENT && text.contains("not 3"), "{code}: {text}");
}

#[test]
fn a_wait_for_a_device_leaves_a_capture_alone() {
    let _turn = turn();
    let stream = new_stream();
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, stream.as_raw()) });
    assert_eq!(waits(|| succeed(cuda_mem_torch_synchronize(0))), 1);
    begin_capture(stream);
    assert_eq!(waits(|| assert_eq!(cuda_mem_torch_synchronize(0), CUDA_MEM_TORCH_CAPTURING)), 0);
    end_capture(stream);
    assert_eq!(waits(|| succeed(cuda_mem_torch_synchronize(0))), 1);
    assert_eq!(cuda_mem_torch_synchronize(99), CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

/// One thread captures again and again on a stream that was seen; another one waits for the device in every way that there is.
#[test]
fn captures_that_begin_beside_a_wait_for_a_device_go_on() {
    let _turn = turn();
    let (captured, other) = (new_stream(), new_stream());
    // SAFETY: a stream of the device.
    succeed(unsafe { cuda_mem_torch_see_stream(0, captured.as_raw()) });
    let block = allocate(3 * MIB, other.as_raw());
    let (bytes, _) = share(block);
    succeed(join(c"beside"));
    let wait = || {
        let code = cuda_mem_torch_synchronize(0);
        assert!(matches!(code, CUDA_MEM_TORCH_OK | CUDA_MEM_TORCH_CAPTURING), "{}", message());
        cuda_mem_torch_enable(false);
        delete(allocate(MIB, null_mut()));
        cuda_mem_torch_enable(true);
        let mut base = null_mut();
        // SAFETY: the bytes and a place.
        succeed(unsafe { cuda_mem_torch_ipc_open(0, bytes.as_ptr(), bytes.len(), &mut base) });
        // SAFETY: nothing uses it.
        succeed(unsafe { cuda_mem_torch_ipc_close(base) });
        // SAFETY: a size, and the default stream.
        let plain = unsafe { cuda_mem_torch_alloc(MIB, 0, null_mut()) };
        // SAFETY: nothing uses it.
        unsafe { cuda_mem_torch_free(plain, MIB, 0, null_mut()) };
        cuda_mem_torch_plain_reset();
        succeed(free(malloc(MIB).unwrap()));
    };
    // Time for a capture to begin, where one would end by the call.
    for call in ["cuCtxSynchronize", "cuCtxRecordEvent"] {
        sim().delay(call, Duration::from_micros(200));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let captures = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                begin_capture(captured);
                thread::sleep(Duration::from_micros(100));
                end_capture(captured);
                thread::sleep(Duration::from_micros(100));
            }
        });
        for _ in 0..30 {
            if !captures.is_finished() {
                wait();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        captures.join().unwrap();
    });
    sim().clear_faults();
    wait();
    empty_cache(NO_POOL);
    assert_eq!(cuda_mem_torch_uncached_blocks(), 0);
    delete(block);
    succeed(leave(c"beside"));
}
