//! NVSHMEM's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use cuda_mem_core::sys::CUstream;
use cuda_mem_core::sys::nvshmem::{
    NVSHMEM_CMP_GE, NVSHMEM_SIGNAL_SET, NVSHMEMX_INIT_WITH_UNIQUEID, Table, nvshmemx_init_attr_v1,
    nvshmemx_init_attr_v2, nvshmemx_uniqueid_v1,
};

use super::fabric::{self, Fabric, pointer};
use super::{fails, note};

static FABRIC: Mutex<Option<Fabric>> = Mutex::new(None);
/// The minor version: 3.x.5.
static MINOR: AtomicI32 = AtomicI32::new(4);
/// The next allocation fails.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// The functions, of version 3.`minor`.5.
pub(crate) fn table(minor: c_int) -> Table {
    MINOR.store(minor, Ordering::SeqCst);
    // SAFETY: functions with the types of the header, of this program.
    unsafe { Table::from_lookup(lookup) }.unwrap()
}

/// The next allocation finds no room, as the others' does if they do the same.
pub(crate) fn fill() {
    IS_FULL.store(true, Ordering::SeqCst);
}

/// Initialises it, as another library in the process would.
pub(crate) fn initialise(id: [u8; 16], rank: usize, ranks: usize) {
    *FABRIC.lock().unwrap() = Some(Fabric::join(&id, rank, ranks));
}

/// Finalises it, as whoever has initialised it would.
pub(crate) fn leave() {
    FABRIC.lock().unwrap().take().expect("an instance").leave();
}

/// As if the process was new.
pub(crate) fn reset() {
    IS_FULL.store(false, Ordering::SeqCst);
    FABRIC.lock().unwrap().take().inspect(Fabric::forget);
}

/// Initialised by somebody, with others who are not here.
pub(crate) fn pretend(rank: usize, ranks: usize) {
    *FABRIC.lock().unwrap() = Some(Fabric::pretended(rank, ranks));
}

pub(crate) fn is_initialised() -> bool {
    FABRIC.lock().unwrap().is_some()
}

fn with<R>(body: impl FnOnce(&mut Fabric) -> R) -> R {
    body(FABRIC.lock().unwrap().as_mut().expect("an instance"))
}

fn lookup(symbol: &CStr) -> *const c_void {
    match symbol.to_str().unwrap() {
        "nvshmemx_vendor_get_version_info" => version as *const c_void,
        "nvshmemx_init_status" => status as *const c_void,
        "nvshmemx_get_uniqueid" => unique_id as *const c_void,
        "nvshmemx_set_attr_uniqueid_args" => set_attributes as *const c_void,
        "nvshmemx_hostlib_init_attr" => init as *const c_void,
        "nvshmemx_hostlib_finalize" => finalize as *const c_void,
        "nvshmem_my_pe" => my_pe as *const c_void,
        "nvshmem_n_pes" => n_pes as *const c_void,
        "nvshmem_malloc" => malloc as *const c_void,
        "nvshmem_free" => free as *const c_void,
        "nvshmem_ptr" => there as *const c_void,
        "nvshmemx_quiet_on_stream" => quiet as *const c_void,
        "nvshmemx_signal_op_on_stream" => signal as *const c_void,
        "nvshmemx_signal_wait_until_on_stream" => wait as *const c_void,
        _ => never as *const c_void,
    }
}

/// Stands for the functions that are not called.
extern "C" fn never() {
    std::process::abort();
}

extern "C" fn version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) {
    for (to, value) in [(major, 3), (minor, MINOR.load(Ordering::SeqCst)), (patch, 5)] {
        // SAFETY: the table passes a number to write.
        unsafe { *to = value };
    }
}

extern "C" fn status() -> c_int {
    if is_initialised() { 2 } else { 0 }
}

extern "C" fn unique_id(id: *mut nvshmemx_uniqueid_v1) -> c_int {
    note("unique id");
    // SAFETY: an id to write, that says which layout it has.
    let id = unsafe { &mut *id };
    assert_eq!(id.version, (1 << 16) + 128);
    id.internal.iter_mut().zip(fabric::new_id()).for_each(|(to, from)| *to = c_char::from_ne_bytes([from]));
    0
}

/// Sets the attributes as a library of the version would, which looks at the layout first.
extern "C" fn set_attributes(
    rank: c_int,
    ranks: c_int,
    id: *const nvshmemx_uniqueid_v1,
    attributes: *mut c_void,
) -> c_int {
    // SAFETY: attributes of either layout begin with its number.
    let layout = unsafe { *attributes.cast::<c_int>() };
    let expected = if MINOR.load(Ordering::SeqCst) < 5 { 1 } else { 2 };
    assert_eq!(layout, (expected << 16) + 144);
    let arguments = match expected {
        // SAFETY: attributes of this layout.
        1 => unsafe { &mut (*attributes.cast::<nvshmemx_init_attr_v1>()).args.uid_args },
        // SAFETY: as above.
        _ => unsafe { &mut (*attributes.cast::<nvshmemx_init_attr_v2>()).args.uid_args },
    };
    (arguments.myrank, arguments.nranks, arguments.id) = (rank, ranks, id.cast_mut());
    0
}

extern "C" fn init(flags: c_uint, attributes: *mut c_void) -> c_int {
    note("init");
    assert_eq!(flags, NVSHMEMX_INIT_WITH_UNIQUEID);
    // SAFETY: both layouts have the arguments at the same place, which `set_attributes` has set.
    let arguments = unsafe { (*attributes.cast::<nvshmemx_init_attr_v1>()).args.uid_args };
    // SAFETY: the id lives until the initialisation is done, as the header says.
    let id = unsafe { *arguments.id };
    let id: [u8; 16] = std::array::from_fn(|index| id.internal[index].to_ne_bytes()[0]);
    initialise(id, arguments.myrank as usize, arguments.nranks as usize);
    if fails("init") {
        FABRIC.lock().unwrap().take();
        return 7;
    }
    0
}

extern "C" fn finalize() {
    note("finalize");
    leave();
}

extern "C" fn my_pe() -> c_int {
    with(|fabric| fabric.rank as c_int + c_int::from(fails("my_pe")))
}

extern "C" fn n_pes() -> c_int {
    with(|fabric| fabric.ranks as c_int)
}

extern "C" fn malloc(bytes: usize) -> *mut c_void {
    note("malloc");
    if IS_FULL.swap(false, Ordering::SeqCst) {
        return ptr::null_mut();
    }
    let made = fabric::allocate(bytes);
    with(|fabric| fabric.share(made, bytes));
    if fails("malloc") {
        with(|fabric| fabric.memory.remove(&made));
        return ptr::null_mut();
    }
    pointer(made)
}

extern "C" fn free(memory: *mut c_void) {
    note("free");
    let address = memory.expose_provenance() as u64;
    with(|fabric| fabric.unshare(address));
    fabric::free(address);
}

extern "C" fn there(memory: *const c_void, pe: c_int) -> *mut c_void {
    let address = memory.expose_provenance() as u64;
    with(|fabric| fabric.there(address, pe as usize)).map_or(ptr::null_mut(), pointer)
}

extern "C" fn quiet(_: CUstream) {}

extern "C" fn signal(word: *mut u64, value: u64, operation: c_int, pe: c_int, stream: CUstream) {
    assert_eq!(operation, NVSHMEM_SIGNAL_SET);
    let address = word.expose_provenance() as u64;
    let there = with(|fabric| fabric.there(address, pe as usize)).expect("symmetric memory");
    fabric::write(stream, there, value);
}

extern "C" fn wait(word: *mut u64, comparison: c_int, value: u64, stream: CUstream) {
    assert_eq!(comparison, NVSHMEM_CMP_GE);
    fabric::wait(stream, word.expose_provenance() as u64, value);
}
