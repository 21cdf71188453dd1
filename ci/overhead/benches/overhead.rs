//! What the safe layer adds to a driver call, over a driver whose calls do nothing.
//!
//! Each pair is the same driver calls, once through function pointers and once through the crate; the difference divided by
//! the number of calls is the cost. The prediction when this was written: under 25 ns a call, most of it the lock of the
//! use set.

#![allow(missing_docs, reason = "criterion's macros write undocumented functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use cuda_mem_core::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, Table,
};
use cuda_mem_core::{Context, DeviceBuffer, Driver, Event, Stream};

const OK: CUresult = CUresult::CUDA_SUCCESS;

/// A driver function that does nothing but what its caller needs to go on.
macro_rules! no_op {
    ($name:ident($($argument:ident: $type:ty),*) $body:block) => {
        extern "C" fn $name($($argument: $type),*) -> CUresult {
            $body
            OK
        }
    };
}

/// Writes through a pointer that the benchmark's own calls pass.
fn put<T>(target: *mut T, value: T) {
    // SAFETY: each caller below is a driver function whose argument points to one value to write.
    unsafe { target.write(value) }
}

no_op!(init(_flags: c_uint) {});
no_op!(version(version: *mut c_int) { put(version, 13000) });
no_op!(device_count(count: *mut c_int) { put(count, 1) });
no_op!(device_get(device: *mut CUdevice, _ordinal: c_int) { put(device, 0) });
no_op!(attribute(value: *mut c_int, _attribute: CUdevice_attribute, _device: CUdevice) { put(value, 1) });
no_op!(retain(context: *mut CUcontext, _device: CUdevice) { put(context, std::ptr::without_provenance_mut(16)) });
no_op!(release(_device: CUdevice) {});
no_op!(get_current(context: *mut CUcontext) { put(context, std::ptr::without_provenance_mut(16)) });
no_op!(exchange(_mode: *mut CUstreamCaptureMode) {});
no_op!(stream_create(stream: *mut CUstream, _flags: c_uint, _priority: c_int) { put(stream, std::ptr::without_provenance_mut(32)) });
no_op!(stream_destroy(_stream: CUstream) {});
no_op!(stream_id(_stream: CUstream, id: *mut c_ulonglong) { put(id, 7) });
no_op!(stream_query(_stream: CUstream) {});
no_op!(is_capturing(_stream: CUstream, status: *mut CUstreamCaptureStatus) {
    put(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
});
no_op!(event_create(event: *mut CUevent, _flags: c_uint) { put(event, std::ptr::without_provenance_mut(48)) });
no_op!(event_destroy(_event: CUevent) {});
no_op!(event_record(_event: CUevent, _stream: CUstream) {});
no_op!(alloc(address: *mut CUdeviceptr, _bytes: usize, _stream: CUstream) { put(address, 1 << 40) });
no_op!(free(_address: CUdeviceptr, _stream: CUstream) {});
no_op!(to_device(_target: CUdeviceptr, _source: *const c_void, _bytes: usize, _stream: CUstream) {});
no_op!(error_text(_code: CUresult, _text: *mut *const c_char) {});

fn address_of(name: &CStr) -> *const c_void {
    let functions: &[(&CStr, *const c_void)] = &[
        (c"cuInit", init as *const c_void),
        (c"cuDriverGetVersion", version as *const c_void),
        (c"cuDeviceGetCount", device_count as *const c_void),
        (c"cuDeviceGet", device_get as *const c_void),
        (c"cuDeviceGetAttribute", attribute as *const c_void),
        (c"cuDevicePrimaryCtxRetain", retain as *const c_void),
        (c"cuDevicePrimaryCtxRelease_v2", release as *const c_void),
        (c"cuCtxGetCurrent", get_current as *const c_void),
        (c"cuThreadExchangeStreamCaptureMode", exchange as *const c_void),
        (c"cuStreamCreateWithPriority", stream_create as *const c_void),
        (c"cuStreamDestroy_v2", stream_destroy as *const c_void),
        (c"cuStreamGetId", stream_id as *const c_void),
        (c"cuStreamQuery", stream_query as *const c_void),
        (c"cuStreamSynchronize", stream_query as *const c_void),
        (c"cuStreamIsCapturing", is_capturing as *const c_void),
        (c"cuEventCreate", event_create as *const c_void),
        (c"cuEventDestroy_v2", event_destroy as *const c_void),
        (c"cuEventRecord", event_record as *const c_void),
        (c"cuMemAllocAsync", alloc as *const c_void),
        (c"cuMemFreeAsync", free as *const c_void),
        (c"cuMemcpyHtoDAsync_v2", to_device as *const c_void),
        (c"cuGetErrorName", error_text as *const c_void),
        (c"cuGetErrorString", error_text as *const c_void),
    ];
    functions.iter().find(|(known, _)| *known == name).map_or(std::ptr::null(), |(_, address)| *address)
}

fn context() -> Context {
    // SAFETY: each address is that of a function with the type of its export.
    let table = unsafe { Table::from_lookup(address_of) }.unwrap();
    let driver = Driver::over(Box::leak(Box::new(table))).unwrap();
    driver.device(0).unwrap().primary_context().unwrap()
}

fn overhead(criterion: &mut Criterion) {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let raw = stream.as_raw().cast();
    let table = context.driver().table();

    let mut group = criterion.benchmark_group("query");
    let query = table.cuStreamQuery().unwrap();
    // SAFETY: the no-op takes any stream.
    group.bench_function("raw", |bencher| bencher.iter(|| unsafe { query(black_box(raw)) }));
    group.bench_function("safe", |bencher| bencher.iter(|| black_box(&stream).is_idle().unwrap()));
    group.finish();

    let mut group = criterion.benchmark_group("record");
    let event = Event::new(&context).unwrap();
    let record = table.cuEventRecord().unwrap();
    let raw_event = event.as_raw().cast();
    group.bench_function("raw", |bencher| {
        // SAFETY: the no-op takes any handles.
        bencher.iter(|| unsafe { record(black_box(raw_event), black_box(raw)) });
    });
    group.bench_function("safe", |bencher| bencher.iter(|| black_box(&stream).record(&event).unwrap()));
    group.finish();

    let mut group = criterion.benchmark_group("allocate, copy 1 KiB, wait, free (4 calls)");
    let source = [0u8; 1024];
    let (alloc, copy, wait, free) = (
        table.cuMemAllocAsync().unwrap(),
        table.cuMemcpyHtoDAsync().unwrap(),
        table.cuStreamSynchronize().unwrap(),
        table.cuMemFreeAsync().unwrap(),
    );
    group.bench_function("raw", |bencher| {
        bencher.iter(|| {
            let mut address = 0;
            // SAFETY: the no-op writes the address.
            unsafe { alloc(&mut address, 1024, black_box(raw)) };
            // SAFETY: the no-op reads nothing.
            unsafe { copy(address, source.as_ptr().cast(), 1024, black_box(raw)) };
            // SAFETY: the no-op takes any stream.
            unsafe { wait(black_box(raw)) };
            // SAFETY: the no-op takes any address.
            unsafe { free(address, black_box(raw)) }
        });
    });
    group.bench_function("safe", |bencher| {
        bencher.iter(|| drop(DeviceBuffer::from_slice(black_box(&stream), &source).unwrap()));
    });
    group.finish();
}

criterion_group!(benches, overhead);
criterion_main!(benches);
