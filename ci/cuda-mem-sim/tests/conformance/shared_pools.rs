//! Pools and their blocks, exported and imported, all in one process.

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAllocationHandleType as Handle, CUmemLocation,
    CUmemPoolPtrExportData_v1, CUmemoryPool, CUpointer_attribute as Attribute, CUstream,
};

use crate::Case;
use crate::pools::{DEVICE, NODE, pool, properties};
use crate::questions::{Questions, ask, cu};

const FD: Handle = Handle::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const POSIX: u32 = FD.0;

pub(crate) const CASES: &[Case] = &[
    ("shared pools: handles", |m| Questions::answers(m, handles)),
    ("shared pools: an imported pool", |m| Questions::answers(m, imported)),
    ("shared pools: blocks", |m| Questions::answers(m, blocks)),
    ("shared pools: a block imported twice", |m| Questions::answers(m, twice)),
    ("shared pools: blocks of host memory", |m| Questions::answers(m, on_host)),
];

fn export(q: &Questions, pool: CUmemoryPool) -> *mut c_void {
    let mut number = -1_i32;
    q.expect(cu!(q, cuMemPoolExportToShareableHandle((&raw mut number).cast(), pool, FD, 0)));
    ptr::without_provenance_mut(number as usize)
}

fn import(q: &Questions, handle: *mut c_void) -> CUmemoryPool {
    let mut pool = ptr::null_mut();
    q.expect(cu!(q, cuMemPoolImportFromShareableHandle(&mut pool, handle, FD, 0)));
    pool
}

/// A block of a pool, with what another process needs of it.
fn block(q: &Questions, pool: CUmemoryPool, stream: CUstream) -> (CUdeviceptr, CUmemPoolPtrExportData_v1) {
    let (mut at, mut data) = (0, CUmemPoolPtrExportData_v1::default());
    q.expect(cu!(q, cuMemAllocFromPoolAsync(&mut at, 4096, pool, stream)));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    q.expect(cu!(q, cuMemPoolExportPointer(&mut data, at)));
    (at, data)
}

fn handles(q: &mut Questions) {
    let shared = pool(q, &properties(DEVICE, 0, POSIX));
    let mut number = -1_i32;
    let out = (&raw mut number).cast::<c_void>();
    ask!(q, "posix fd", cuMemPoolExportToShareableHandle(out, shared, FD, 0));
    let handle = ptr::without_provenance_mut::<c_void>(number as usize);
    ask!(q, "a second time", cuMemPoolExportToShareableHandle(out, shared, FD, 0));
    ask!(q, "flags 1", cuMemPoolExportToShareableHandle(out, shared, FD, 1));
    ask!(q, "type none", cuMemPoolExportToShareableHandle(out, shared, Handle(0), 0));
    let mut there = ptr::null_mut();
    ask!(q, "in the same process", cuMemPoolImportFromShareableHandle(&mut there, handle, FD, 0));
    ask!(q, "a second time", cuMemPoolImportFromShareableHandle(&mut there, handle, FD, 0));
    ask!(q, "flags 1", cuMemPoolImportFromShareableHandle(&mut there, handle, FD, 1));
    let other = std::fs::File::open("/dev/null").unwrap();
    let other = ptr::without_provenance_mut::<c_void>(other.as_raw_fd() as usize);
    ask!(q, "fd of /dev/null", cuMemPoolImportFromShareableHandle(&mut there, other, FD, 0));
    let none = ptr::without_provenance_mut::<c_void>(usize::MAX);
    ask!(q, "fd -1", cuMemPoolImportFromShareableHandle(&mut there, none, FD, 0));
}

fn imported(q: &mut Questions) {
    let stream = q.stream();
    let shared = pool(q, &properties(DEVICE, 0, POSIX));
    let there = import(q, export(q, shared));
    let mut at = 0;
    ask!(q, "imported pool", cuMemAllocFromPoolAsync(&mut at, 4096, there, stream));
    let mut number = -1_i32;
    ask!(q, "imported pool", cuMemPoolExportToShareableHandle((&raw mut number).cast(), there, FD, 0));
    ask!(q, "imported pool", cuDeviceSetMemPool(0, there));
    ask!(q, "imported pool", cuMemPoolTrimTo(there, 0));
    let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    let mut device = CUmemLocation { type_: DEVICE, id: 0 };
    ask!(q, "imported pool, its device", cuMemPoolGetAccess(&mut flags, there, &mut device));
    q.fact("access", flags.0);
    ask!(q, "imported pool", cuMemPoolDestroy(there));
}

fn blocks(q: &mut Questions) {
    let stream = q.stream();
    let (one, two) = (pool(q, &properties(DEVICE, 0, POSIX)), pool(q, &properties(DEVICE, 0, POSIX)));
    let (there, elsewhere) = (import(q, export(q, one)), import(q, export(q, two)));
    let (at, mut data) = block(q, one, stream);
    ask!(q, "interior pointer", cuMemPoolExportPointer(&mut data, at + 100));
    q.expect(cu!(q, cuMemPoolExportPointer(&mut data, at)));
    let mut found = 0;
    ask!(q, "a block of another pool", cuMemPoolImportPointer(&mut found, elsewhere, &mut data));
    ask!(q, "a block of this pool", cuMemPoolImportPointer(&mut found, there, &mut data));
    q.expect(cu!(q, cuMemsetD8Async(at, 7, 4096, stream)));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    let mut byte = 0_u8;
    ask!(q, "imported block", cuMemcpyDtoH((&raw mut byte).cast(), found, 1));
    q.fact("what the exporter wrote", byte);
    let mut size = 0_usize;
    let range = Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE;
    ask!(q, "imported block, RANGE_SIZE", cuPointerGetAttribute((&raw mut size).cast(), range, found));
    q.fact("size", size);
    ask!(q, "imported block", cuMemPoolExportPointer(&mut data, found));
    ask!(q, "imported block", cuMemFreeAsync(found, stream));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
    ask!(q, "imported block, freed", cuMemcpyDtoH((&raw mut byte).cast(), found, 1));
    ask!(q, "exported block", cuMemFreeAsync(at, stream));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
}

fn twice(q: &mut Questions) {
    let stream = q.stream();
    let shared = pool(q, &properties(DEVICE, 0, POSIX));
    let there = import(q, export(q, shared));
    let (_, mut data) = block(q, shared, stream);
    let (mut first, mut second) = (0, 0);
    ask!(q, "once", cuMemPoolImportPointer(&mut first, there, &mut data));
    ask!(q, "twice", cuMemPoolImportPointer(&mut second, there, &mut data));
    q.fact("the same address", first == second);
}

fn on_host(q: &mut Questions) {
    let stream = q.stream();
    let shared = pool(q, &properties(NODE, 0, POSIX));
    let there = import(q, export(q, shared));
    let (at, mut data) = block(q, shared, stream);
    let mut found = 0;
    ask!(q, "host block", cuMemPoolImportPointer(&mut found, there, &mut data));
    if found != 0 {
        let (here, there) = (ptr::with_exposed_provenance_mut::<u8>(at as usize), found as usize);
        // SAFETY: host memory of 4096 bytes that nothing else uses.
        unsafe { here.write_volatile(9) };
        // SAFETY: the same memory at another address.
        q.fact("seen by the host", unsafe { ptr::with_exposed_provenance::<u8>(there).read_volatile() });
    }
    let mut again = 0;
    ask!(q, "host block, twice", cuMemPoolImportPointer(&mut again, there, &mut data));
    ask!(q, "host block", cuMemFreeAsync(found, stream));
    q.expect(cu!(q, cuStreamSynchronize(stream)));
}
