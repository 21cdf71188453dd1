//! Device memory, copies and fills.

use std::ptr;

use crate::Case;
use crate::questions::{Questions, as_device, as_host, ask, cu};

const MIB: usize = 1 << 20;

pub(crate) const CASES: &[Case] = &[
    ("device memory: allocations", |m| Questions::answers(m, allocations)),
    ("device memory: stream ordered", |m| Questions::answers(m, stream_ordered)),
    ("device memory: nothing to copy", |m| Questions::answers(m, nothing_to_copy)),
    ("device memory: ends", |m| Questions::answers(m, ends)),
    ("device memory: freed", |m| Questions::answers(m, freed)),
    ("device memory: ranges", |m| Questions::answers(m, ranges)),
];

fn allocations(q: &mut Questions) {
    let mut at = 0;
    ask!(q, "size 0", cuMemAlloc(&mut at, 0));
    ask!(q, "null result pointer", cuMemAlloc(ptr::null_mut(), 16));
    ask!(q, "size 1 << 60", cuMemAlloc(&mut at, 1 << 60));
    ask!(q, "size ~0", cuMemAlloc(&mut at, usize::MAX));
    ask!(q, "size 200 GiB (more than the card)", cuMemAlloc(&mut at, 200 << 30));
    let (device, small, pinned) = (q.alloc(4 * MIB), q.alloc(512), q.pinned(4096));
    let mut byte = 0_u8;
    ask!(q, "null", cuMemFree(0));
    ask!(q, "unknown pointer", cuMemFree(0x7f12_3456_0000));
    ask!(q, "small unknown pointer 0x1000", cuMemFree(0x1000));
    ask!(q, "interior pointer", cuMemFree(device + 512));
    ask!(q, "pageable host pointer", cuMemFree((&raw mut byte).addr() as u64));
    ask!(q, "pinned host pointer", cuMemFree(as_device(pinned)));
    ask!(q, "valid", cuMemFree(device));
    ask!(q, "twice", cuMemFree(device));
    q.expect(cu!(q, cuMemFree(small)));
    ask!(q, "small pointer (512 B) twice", cuMemFree(small));
    q.expect(cu!(q, cuMemFreeHost(pinned)));
}

fn stream_ordered(q: &mut Questions) {
    let (stream, other) = (q.stream(), q.stream());
    let mut at = 7;
    ask!(q, "size 0", cuMemAllocAsync(&mut at, 0, stream));
    assert_eq!(at, 0);
    ask!(q, "null result pointer", cuMemAllocAsync(ptr::null_mut(), 16, stream));
    ask!(q, "size 1 << 60", cuMemAllocAsync(&mut at, 1 << 60, stream));
    ask!(q, "200 GiB", cuMemAllocAsync(&mut at, 200 << 30, stream));
    ask!(q, "legacy stream", cuMemAllocAsync(&mut at, 16, ptr::null_mut()));
    q.expect(cu!(q, cuMemFreeAsync(at, ptr::null_mut())));
    let (block, pinned) = (q.alloc_async(MIB, stream), q.pinned(4096));
    ask!(q, "null", cuMemFreeAsync(0, stream));
    ask!(q, "unknown pointer", cuMemFreeAsync(0x7f12_3456_0000, stream));
    ask!(q, "interior pointer", cuMemFreeAsync(block + 512, stream));
    ask!(q, "valid", cuMemFreeAsync(block, stream));
    ask!(q, "twice, before a synchronisation", cuMemFreeAsync(block, stream));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    ask!(q, "twice, after a synchronisation", cuMemFreeAsync(block, stream));
    let device = q.alloc(MIB);
    ask!(q, "cuMemAlloc pointer", cuMemFreeAsync(device, stream));
    ask!(q, "pinned host pointer", cuMemFreeAsync(as_device(pinned), stream));
    let block = q.alloc_async(MIB, stream);
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    ask!(q, "cuMemAllocAsync pointer, stream idle", cuMemFree(block));
    let block = q.alloc_async(MIB, stream);
    ask!(q, "on another stream than the allocation's, not ordered", cuMemFreeAsync(block, other));
    ask!(q, "null pool", cuMemAllocFromPoolAsync(&mut at, 16, ptr::null_mut(), stream));
    let mut pool = ptr::null_mut();
    q.expect(cu!(q, cuDeviceGetDefaultMemPool(&mut pool, 0)));
    ask!(q, "default pool, size 0", cuMemAllocFromPoolAsync(&mut at, 0, pool, stream));
    q.expect(cu!(q, cuMemFreeHost(pinned)));
    q.expect(cu!(q, cuCtxSynchronize()));
}

fn nothing_to_copy(q: &mut Questions) {
    let (device, stream) = (q.alloc(4096), q.stream());
    let bytes = [0_u8; 16];
    ask!(q, "0 bytes, valid pointers", cuMemcpyHtoD(device, bytes.as_ptr().cast(), 0));
    ask!(q, "0 bytes, null pointers", cuMemcpyHtoD(0, ptr::null(), 0));
    ask!(q, "0 bytes, unknown device pointer", cuMemcpyHtoD(0x7f12_3456_0000, bytes.as_ptr().cast(), 0));
    ask!(q, "0 bytes, null pointers", cuMemcpyDtoH(ptr::null_mut(), 0, 0));
    ask!(q, "0 bytes, null pointers", cuMemcpyDtoD(0, 0, 0));
    ask!(q, "0 bytes, null pointers", cuMemcpyHtoDAsync(0, ptr::null(), 0, stream));
    ask!(q, "0 bytes, null pointers", cuMemcpyAsync(0, 0, 0, stream));
    ask!(q, "0 bytes, null pointer", cuMemsetD8(0, 1, 0));
    q.expect(cu!(q, cuMemFree(device)));
}

fn ends(q: &mut Questions) {
    let (device, stream, pinned) = (q.alloc(4 * MIB), q.stream(), q.pinned(8 * MIB));
    let mut bytes = vec![0_u8; 8 * MIB];
    let host = bytes.as_mut_ptr().cast::<std::ffi::c_void>();
    ask!(q, "16 bytes, null device pointer", cuMemcpyHtoD(0, host, 16));
    ask!(q, "16 bytes, null host pointer", cuMemcpyHtoD(device, ptr::null(), 16));
    ask!(q, "16 bytes, null host pointer", cuMemcpyDtoH(ptr::null_mut(), device, 16));
    ask!(q, "16 bytes, null source", cuMemcpyDtoD(device, 0, 16));
    ask!(q, "overlapping ranges", cuMemcpyDtoD(device + 8, device, 64));
    ask!(q, "16 bytes, null device pointer", cuMemcpyHtoDAsync(0, host, 16, stream));
    ask!(q, "runs 4 KiB past the end of the allocation (4 MiB)", cuMemcpyHtoD(device, host, 4 * MIB + 4096));
    ask!(
        q,
        "runs 4 KiB past the end of the allocation (4 MiB), pinned source",
        cuMemcpyHtoDAsync(device, pinned, 4 * MIB + 4096, stream)
    );
    ask!(q, "device destination is a pinned host pointer", cuMemcpyHtoD(as_device(pinned), host, 16));
    ask!(q, "device destination is a pageable host pointer", cuMemcpyHtoD(as_device(host), pinned, 16));
    ask!(q, "host source is a device pointer", cuMemcpyHtoD(device, as_host(device + 64), 16));
    ask!(q, "pageable to pageable", cuMemcpy(as_device(host), as_device(host) + 64, 16));
    ask!(q, "unknown pointer 0x7f1234560000, 16 bytes", cuMemcpyHtoD(0x7f12_3456_0000, host, 16));
    ask!(q, "16 bytes, null pointer", cuMemsetD8(0, 1, 16));
    ask!(q, "misaligned pointer", cuMemsetD32(device + 1, 1, 4));
    ask!(q, "pageable host pointer", cuMemsetD8(as_device(host), 1, 16));
    q.expect(cu!(q, cuCtxSynchronize()));
    q.expect(cu!(q, cuMemFree(device)));
    q.expect(cu!(q, cuMemFreeHost(pinned)));
}

fn freed(q: &mut Questions) {
    let (stream, pinned, other) = (q.stream(), q.pinned(4096), q.alloc(4096));
    let (large, small) = (q.alloc(32 * MIB), q.alloc(512));
    q.expect(cu!(q, cuMemFree(large)));
    q.expect(cu!(q, cuMemFree(small)));
    ask!(q, "freed pointer (32 MiB allocation), synchronous", cuMemcpyHtoD(large, pinned, 16));
    ask!(q, "freed pointer (512 B allocation), synchronous", cuMemcpyHtoD(small, pinned, 16));
    ask!(q, "freed pointer (32 MiB), pinned source", cuMemcpyHtoDAsync(large, pinned, 16, stream));
    ask!(q, "freed pointer (32 MiB), synchronous", cuMemcpyDtoH(pinned, large, 16));
    ask!(q, "freed source", cuMemcpyDtoD(other, large, 16));
    ask!(q, "freed pointer", cuMemsetD8Async(large, 1, 16, stream));
    let mut pool = ptr::null_mut();
    q.expect(cu!(q, cuDeviceGetDefaultMemPool(&mut pool, 0)));
    let block = q.alloc_async(MIB, stream);
    q.expect(cu!(q, cuMemFreeAsync(block, stream)));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    q.expect(cu!(q, cuMemPoolTrimTo(pool, 0)));
    ask!(q, "pointer freed with cuMemFreeAsync, pool trimmed", cuMemcpyHtoDAsync(block, pinned, 16, stream));
    q.expect(cu!(q, cuMemFree(other)));
    q.expect(cu!(q, cuMemFreeHost(pinned)));
}

fn ranges(q: &mut Questions) {
    let (device, pinned) = (q.alloc(4 * MIB), q.pinned(MIB));
    let gone = q.alloc(32 * MIB);
    q.expect(cu!(q, cuMemFree(gone)));
    let (mut base, mut size, mut byte) = (0, 0, 0_u8);
    ask!(q, "unknown pointer", cuMemGetAddressRange(&mut base, &mut size, 0x7f12_3456_0000));
    ask!(q, "null", cuMemGetAddressRange(&mut base, &mut size, 0));
    ask!(q, "interior pointer", cuMemGetAddressRange(&mut base, &mut size, device + 100));
    assert_eq!((base, size), (device, 4 * MIB));
    ask!(q, "last byte", cuMemGetAddressRange(&mut base, &mut size, device + 4 * MIB as u64 - 1));
    ask!(
        q,
        "pageable host pointer",
        cuMemGetAddressRange(&mut base, &mut size, (&raw mut byte).addr() as u64)
    );
    ask!(q, "pinned host pointer", cuMemGetAddressRange(&mut base, &mut size, as_device(pinned)));
    assert_eq!((base, size), (as_device(pinned), MIB));
    ask!(q, "freed pointer", cuMemGetAddressRange(&mut base, &mut size, gone));
    ask!(q, "null results, valid pointer", cuMemGetAddressRange(ptr::null_mut(), ptr::null_mut(), device));
    q.expect(cu!(q, cuMemFree(device)));
    q.expect(cu!(q, cuMemFreeHost(pinned)));
}
