//! Pools of one process in another, and the rules of pools that can be shared.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::ptr;

use cuda_mem_sim::Sim;
use cuda_mem_sys::{
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute as Attribute, CUmemPoolProps_v1, CUmemPoolPtrExportData_v1, CUmemoryPool, CUresult,
};

use crate::gpu::{Gpu, INVALID_VALUE, OK, cu};

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;

/// Says to the importer where the pool lies, and where in which process its descriptor and its block are.
const PARCEL: &str = "CUDA_MEM_SIM_TEST_POOL";

fn create(gpu: &Gpu, type_: CUmemLocationType, handles: CUmemAllocationHandleType) -> CUmemoryPool {
    let properties = CUmemPoolProps_v1 {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: handles,
        location: CUmemLocation { type_, id: 0 },
        ..CUmemPoolProps_v1::default()
    };
    let mut pool = ptr::null_mut();
    assert_eq!(cu!(gpu, cuMemPoolCreate(&mut pool, &properties)), OK);
    pool
}

fn export(gpu: &Gpu, pool: CUmemoryPool) -> Result<OwnedFd, CUresult> {
    let mut number = -1_i32;
    match cu!(gpu, cuMemPoolExportToShareableHandle((&raw mut number).cast(), pool, FD, 0)) {
        // SAFETY: a new descriptor, which the driver left to us.
        OK => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        error => Err(error),
    }
}

fn import(gpu: &Gpu, number: i32) -> Result<CUmemoryPool, CUresult> {
    let mut pool = ptr::null_mut();
    let handle = ptr::without_provenance_mut::<c_void>(number as usize);
    match cu!(gpu, cuMemPoolImportFromShareableHandle(&mut pool, handle, FD, 0)) {
        OK => Ok(pool),
        error => Err(error),
    }
}

fn export_block(gpu: &Gpu, at: u64) -> Result<CUmemPoolPtrExportData_v1, CUresult> {
    let mut data = CUmemPoolPtrExportData_v1::default();
    match cu!(gpu, cuMemPoolExportPointer(&mut data, at)) {
        OK => Ok(data),
        error => Err(error),
    }
}

fn import_block(gpu: &Gpu, pool: CUmemoryPool, mut data: CUmemPoolPtrExportData_v1) -> Result<u64, CUresult> {
    let mut at = 0;
    match cu!(gpu, cuMemPoolImportPointer(&mut at, pool, &mut data)) {
        OK => Ok(at),
        error => Err(error),
    }
}

fn take(gpu: &Gpu, pool: CUmemoryPool, len: usize) -> Result<u64, CUresult> {
    let mut at = 0;
    match cu!(gpu, cuMemAllocFromPoolAsync(&mut at, len, pool, ptr::null_mut())) {
        OK => Ok(at),
        error => Err(error),
    }
}

fn attribute(gpu: &Gpu, pool: CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = 0_u64;
    assert_eq!(cu!(gpu, cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())), OK);
    value
}

fn free(gpu: &Gpu, at: u64) {
    assert_eq!(cu!(gpu, cuMemFreeAsync(at, ptr::null_mut())), OK);
    gpu.synchronize(ptr::null_mut());
}

/// Does nothing unless the test below started it.
#[test]
fn importer() {
    let Ok(parcel) = std::env::var(PARCEL) else { return };
    let mut parts = parcel.split(' ');
    let file = File::options().read(true).write(true).open(parts.next().unwrap()).unwrap();
    let text = parts.next().unwrap();
    let mut data = CUmemPoolPtrExportData_v1::default();
    for (index, byte) in data.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    }
    let gpu = Gpu::new();
    let pool = import(&gpu, file.as_raw_fd()).unwrap();
    let at = import_block(&gpu, pool, data).unwrap();
    let mut bytes = [0_u8; 5];
    assert_eq!(gpu.d2h(&mut bytes, at), OK);
    assert_eq!(&bytes, b"hello");
    assert_eq!(gpu.h2d(at, b"HELLO"), OK);
    free(&gpu, at);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.assert_quiet();
}

#[test]
fn what_one_process_writes_the_other_reads() {
    for location in [DEVICE, NODE] {
        let gpu = Gpu::new();
        let pool = create(&gpu, location, FD);
        // Not at the start of a page, and not alone in it.
        let (neighbour, at) = (take(&gpu, pool, 512).unwrap(), take(&gpu, pool, 10_000).unwrap());
        assert_eq!(gpu.h2d(at, b"hello"), OK);
        let (file, data) = (export(&gpu, pool).unwrap(), export_block(&gpu, at).unwrap());
        let bytes: String = data.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
        let parcel = format!("/proc/{}/fd/{} {bytes}", std::process::id(), file.as_raw_fd());
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output =
            command.args(["--exact", "pool_sharing::importer"]).env(PARCEL, parcel).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let mut bytes = [0_u8; 5];
        assert_eq!(gpu.d2h(&mut bytes, at), OK);
        assert_eq!(&bytes, b"HELLO");
        free(&gpu, at);
        free(&gpu, neighbour);
        assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
        gpu.assert_quiet();
    }
}

#[test]
fn memory_outlives_the_pool_it_came_from() {
    let (exporter, importer) = (Gpu::new(), Gpu::new());
    let pool = create(&exporter, DEVICE, FD);
    let at = take(&exporter, pool, 1000).unwrap();
    assert_eq!(exporter.h2d(at, b"left"), OK);
    let (file, data) = (export(&exporter, pool).unwrap(), export_block(&exporter, at).unwrap());
    let imported = import(&importer, file.as_raw_fd()).unwrap();
    let there = import_block(&importer, imported, data).unwrap();
    drop((exporter, file));
    let mut bytes = [0_u8; 4];
    assert_eq!(importer.d2h(&mut bytes, there), OK);
    assert_eq!(&bytes, b"left");
    free(&importer, there);
    assert_eq!(cu!(importer, cuMemPoolDestroy(imported)), OK);
    importer.assert_quiet();
}

#[test]
fn an_imported_pool_is_only_good_for_importing() {
    let gpu = Gpu::new();
    let pool = create(&gpu, DEVICE, FD);
    let at = take(&gpu, pool, 1000).unwrap();
    let file = export(&gpu, pool).unwrap();
    let imported = import(&gpu, file.as_raw_fd()).unwrap();
    assert_eq!(take(&gpu, imported, 1000), Err(INVALID_VALUE));
    assert!(export(&gpu, imported).is_err());
    assert_eq!(cu!(gpu, cuDeviceSetMemPool(0, imported)), INVALID_VALUE);
    let there = import_block(&gpu, imported, export_block(&gpu, at).unwrap()).unwrap();
    assert!(export_block(&gpu, there).is_err());
    assert_eq!(export_block(&gpu, at + 100).map(drop), Err(INVALID_VALUE), "not its start");
    assert_eq!(cu!(gpu, cuMemPoolDestroy(imported)), INVALID_VALUE, "a block is not freed");
    assert_eq!(gpu.h2d(there, b"still there"), OK);
    free(&gpu, there);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(imported)), OK);
    free(&gpu, at);
    assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    gpu.assert_quiet();
}

#[test]
fn an_imported_pool_tells_nothing_and_takes_no_settings() {
    let gpu = Gpu::new();
    for location in [DEVICE, NODE] {
        let pool = create(&gpu, location, FD);
        let at = take(&gpu, pool, 1000).unwrap();
        let (file, data) = (export(&gpu, pool).unwrap(), export_block(&gpu, at).unwrap());
        let imported = import(&gpu, file.as_raw_fd()).unwrap();
        let refuses = || {
            for number in 1..=8 {
                let (attribute, mut value) = (Attribute(number), 0_u64);
                let place = (&raw mut value).cast();
                assert_eq!(cu!(gpu, cuMemPoolGetAttribute(pool, attribute, place)), OK, "{number}");
                let told = cu!(gpu, cuMemPoolGetAttribute(imported, attribute, place));
                assert_eq!(told, INVALID_VALUE, "{number}");
                value = 0;
                let place = (&raw mut value).cast();
                let set = cu!(gpu, cuMemPoolSetAttribute(imported, attribute, place));
                assert_eq!(set, INVALID_VALUE, "{number}");
            }
            assert_eq!(cu!(gpu, cuMemPoolTrimTo(imported, 0)), INVALID_VALUE);
        };
        refuses();
        let there = import_block(&gpu, imported, data).unwrap();
        refuses();
        assert_eq!(cu!(gpu, cuMemPoolDestroy(imported)), INVALID_VALUE, "a block is not freed");
        free(&gpu, there);
        assert_eq!(cu!(gpu, cuMemPoolDestroy(imported)), OK);
        free(&gpu, at);
        assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    }
    gpu.assert_quiet();
}

/// The driver opens a pool's descriptor without close-on-exec, and a handle's with it (ci/driver-answers.tsv).
#[test]
fn a_program_that_is_started_has_the_descriptor_of_a_pool() {
    let gpu = Gpu::new();
    let file = export(&gpu, create(&gpu, DEVICE, FD)).unwrap();
    // SAFETY: an open descriptor; the command takes no argument.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }, 0);
}

#[test]
fn a_block_is_imported_once() {
    let gpu = Gpu::new();
    for location in [DEVICE, NODE] {
        let pool = create(&gpu, location, FD);
        let at = take(&gpu, pool, 1000).unwrap();
        let (file, data) = (export(&gpu, pool).unwrap(), export_block(&gpu, at).unwrap());
        let imported = import(&gpu, file.as_raw_fd()).unwrap();
        let there = import_block(&gpu, imported, data).unwrap();
        let again = if location == DEVICE { Ok(there) } else { Err(CUresult::CUDA_ERROR_ALREADY_MAPPED) };
        assert_eq!(import_block(&gpu, imported, data), again);
        assert_eq!(gpu.h2d(at, b"seen"), OK);
        let mut bytes = [0_u8; 4];
        assert_eq!(gpu.d2h(&mut bytes, there), OK);
        assert_eq!(&bytes, b"seen");
        free(&gpu, there);
        assert_eq!(gpu.d2h(&mut bytes, there), INVALID_VALUE, "one free ends all imports");
        assert!(import_block(&gpu, imported, data).is_ok(), "and then it can be imported anew");
    }
}

#[test]
fn what_belongs_elsewhere_is_refused() {
    let gpu = Gpu::new();
    let (one, two) = (create(&gpu, DEVICE, FD), create(&gpu, DEVICE, FD));
    let at = take(&gpu, one, 1000).unwrap();
    assert_eq!(export_block(&gpu, at).err(), Some(INVALID_VALUE), "of a pool that was not exported");
    let _file = export(&gpu, one).unwrap();
    let data = export_block(&gpu, at).unwrap();
    let imported = import(&gpu, export(&gpu, two).unwrap().as_raw_fd()).unwrap();
    assert_eq!(import_block(&gpu, imported, data), Err(INVALID_VALUE), "a block of another pool");
    assert_eq!(import_block(&gpu, one, data), Err(INVALID_VALUE), "into the pool itself");
    let zeros = CUmemPoolPtrExportData_v1::default();
    assert_eq!(import_block(&gpu, imported, zeros), Err(INVALID_VALUE));
    let other = File::open("/dev/null").unwrap();
    assert_eq!(import(&gpu, other.as_raw_fd()), Err(CUresult::CUDA_ERROR_UNKNOWN));
    assert_eq!(import(&gpu, -1), Err(CUresult::CUDA_ERROR_UNKNOWN));
    let plain = create(&gpu, DEVICE, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE);
    assert!(export(&gpu, plain).is_err());
}

#[test]
fn a_pool_for_others_gives_back_what_it_need_not_keep() {
    let gpu = Gpu::new();
    for location in [DEVICE, NODE] {
        let pool = create(&gpu, location, FD);
        let reserved = || attribute(&gpu, pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        let _file = export(&gpu, pool).unwrap();
        free(&gpu, take(&gpu, pool, 1000).unwrap());
        assert_eq!(reserved(), 0, "the threshold is 0");
        let mut keep = u64::MAX;
        let threshold = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        assert_eq!(cu!(gpu, cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast())), OK);
        let at = take(&gpu, pool, 1000).unwrap();
        free(&gpu, at);
        assert_ne!(reserved(), 0);
        assert_eq!(take(&gpu, pool, 1000), Ok(at), "what is kept is used again");
        free(&gpu, at);
        assert_eq!(cu!(gpu, cuMemPoolTrimTo(pool, 0)), OK);
        assert_eq!(reserved(), 0);
        assert_eq!(cu!(gpu, cuMemPoolDestroy(pool)), OK);
    }
    let (mut unused, mut total) = (0, 0);
    assert_eq!(cu!(gpu, cuMemGetInfo(&mut unused, &mut total)), OK);
    assert_eq!(unused, total);
    gpu.assert_quiet();
}

#[test]
fn what_a_pool_takes_anew_does_not_show_in_old_imports() {
    let gpu = Gpu::new();
    let pool = create(&gpu, DEVICE, FD);
    let file = export(&gpu, pool).unwrap();
    let at = take(&gpu, pool, 1000).unwrap();
    let imported = import(&gpu, file.as_raw_fd()).unwrap();
    let old = import_block(&gpu, imported, export_block(&gpu, at).unwrap()).unwrap();
    free(&gpu, at);
    let at = take(&gpu, pool, 1000).unwrap();
    assert_eq!(gpu.h2d(at, b"new"), OK);
    let mut bytes = [1_u8; 3];
    assert_eq!(gpu.d2h(&mut bytes, old), OK);
    assert_eq!(bytes, [0; 3]);
    let new = import_block(&gpu, imported, export_block(&gpu, at).unwrap()).unwrap();
    assert_eq!(gpu.d2h(&mut bytes, new), OK);
    assert_eq!(&bytes, b"new");
}

#[test]
fn without_data_there_is_nothing_to_export() {
    let gpu = Gpu::with(Sim::builder().no_data());
    let pool = create(&gpu, DEVICE, FD);
    let at = take(&gpu, pool, 1000).unwrap();
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(export(&gpu, pool).map(drop), Err(unsupported));
    assert_eq!(export_block(&gpu, at).map(drop), Err(unsupported));
}
