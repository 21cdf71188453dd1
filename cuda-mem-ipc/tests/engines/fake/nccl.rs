//! NCCL's.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use cuda_mem_core::sys::nccl::{
    Table, ncclComm_t, ncclResult_t, ncclUniqueId, ncclWaitSignalDesc_t, ncclWindow_t,
};
use cuda_mem_core::sys::{CUresult, CUstream};

use super::fabric::{self, Fabric, pointer};
use super::{fails, note};

const GOOD: ncclResult_t = ncclResult_t::ncclSuccess;
/// `ncclSystemError`.
const BAD: ncclResult_t = ncclResult_t(2);
/// What the one communicator is called by.
const COMMUNICATOR: u64 = 0x1000;
/// What a rank's own memory has in its other address.
const OWN: u64 = 1 << 50;

static COMM: Mutex<Option<Comm>> = Mutex::new(None);
static CODE: AtomicI32 = AtomicI32::new(22_907);

struct Comm {
    fabric: Fabric,
    /// Words for signals and sums, those of signals first, by source.
    words: u64,
    sent: BTreeMap<(bool, usize), u64>,
    waited: BTreeMap<(bool, usize), u64>,
    /// Whether there was a first signal, and a first sum.
    is_connected: [bool; 2],
}

impl Comm {
    /// The word that a rank writes, at another one.
    fn word(&self, is_sum: bool, source: usize, target: usize) -> u64 {
        let index = usize::from(is_sum) * self.fabric.ranks + source;
        self.fabric.there(self.words + 8 * index as u64, target).expect("words")
    }

    /// What NCCL needs for signals, or for sums, it makes inside the first such call: it waits for all ranks.
    fn connect(&mut self, is_sum: bool) {
        if !std::mem::replace(&mut self.is_connected[usize::from(is_sum)], true) {
            self.fabric.meet(if is_sum { "the first sum" } else { "the first signal" }, &[]);
        }
    }

    fn put(&mut self, stream: CUstream, is_sum: bool, to: usize) {
        let count = self.sent.entry((is_sum, to)).or_default();
        *count += 1;
        let count = *count;
        fabric::write(stream, self.word(is_sum, self.fabric.rank, to), count);
    }

    fn take(&mut self, stream: CUstream, is_sum: bool, from: usize) {
        let count = self.waited.entry((is_sum, from)).or_default();
        *count += 1;
        let count = *count;
        fabric::wait(stream, self.word(is_sum, from, self.fabric.rank), count);
    }
}

/// The functions, of the version with this code.
pub(crate) fn table(code: c_int) -> Table {
    CODE.store(code, Ordering::SeqCst);
    // SAFETY: functions with the types of the header, of this program.
    unsafe { Table::from_lookup(lookup) }.unwrap()
}

fn with<R>(communicator: ncclComm_t, body: impl FnOnce(&mut Comm) -> R) -> R {
    assert_eq!(communicator.expose_provenance() as u64, COMMUNICATOR);
    body(COMM.lock().unwrap().as_mut().expect("a communicator"))
}

fn lookup(symbol: &CStr) -> *const c_void {
    let is_new = CODE.load(Ordering::SeqCst) >= 22_900;
    match symbol.to_str().unwrap() {
        "ncclGetVersion" => version as *const c_void,
        "ncclGetUniqueId" => unique_id as *const c_void,
        "ncclCommInitRank" => init as *const c_void,
        "ncclCommFinalize" => finalize as *const c_void,
        "ncclCommDestroy" => destroy as *const c_void,
        "ncclCommAbort" => abort as *const c_void,
        "ncclGetErrorString" => error_string as *const c_void,
        "ncclMemAlloc" => allocate as *const c_void,
        "ncclMemFree" => free as *const c_void,
        "ncclCommWindowRegister" => register as *const c_void,
        "ncclCommWindowDeregister" => deregister as *const c_void,
        "ncclAllReduce" => sum as *const c_void,
        "ncclGetPeerDevicePointer" if is_new => there as *const c_void,
        "ncclSignal" if is_new => signal as *const c_void,
        "ncclWaitSignal" if is_new => wait as *const c_void,
        "ncclGetPeerDevicePointer" | "ncclSignal" | "ncclWaitSignal" => std::ptr::null(),
        _ => never as *const c_void,
    }
}

/// Stands for the functions that are not called.
extern "C" fn never() {
    std::process::abort();
}

extern "C" fn version(code: *mut c_int) -> ncclResult_t {
    // SAFETY: the table passes a number to write.
    unsafe { *code = CODE.load(Ordering::SeqCst) };
    GOOD
}

extern "C" fn unique_id(id: *mut ncclUniqueId) -> ncclResult_t {
    note("unique id");
    // SAFETY: an id to write.
    let id = unsafe { &mut *id };
    id.internal.iter_mut().zip(fabric::new_id()).for_each(|(to, from)| *to = c_char::from_ne_bytes([from]));
    GOOD
}

extern "C" fn init(
    communicator: *mut ncclComm_t,
    ranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    note("init");
    let mut fabric = Fabric::join(&id.to_bytes()[..16], rank as usize, ranks as usize);
    let words = fabric::allocate(4096);
    let zero = fabric::table().cuMemsetD8().unwrap();
    // SAFETY: new memory of so many bytes.
    assert_eq!(unsafe { zero(words, 0, 4096) }, CUresult::CUDA_SUCCESS);
    // Before others write there: the driver may zero it after the call.
    let synchronize = fabric::table().cuCtxSynchronize().unwrap();
    // SAFETY: the backend has made a context current.
    assert_eq!(unsafe { synchronize() }, CUresult::CUDA_SUCCESS);
    fabric.share(words, 4096);
    if fails("init") {
        return BAD;
    }
    let comm =
        Comm { fabric, words, sent: BTreeMap::new(), waited: BTreeMap::new(), is_connected: [false; 2] };
    *COMM.lock().unwrap() = Some(comm);
    // SAFETY: a communicator to write.
    unsafe { *communicator = pointer(COMMUNICATOR) };
    GOOD
}

extern "C" fn finalize(communicator: ncclComm_t) -> ncclResult_t {
    note("finalize");
    with(communicator, |_| GOOD)
}

extern "C" fn destroy(communicator: ncclComm_t) -> ncclResult_t {
    note("destroy");
    with(communicator, |_| ());
    let mut comm = COMM.lock().unwrap().take().unwrap();
    comm.fabric.unshare(comm.words);
    fabric::free(comm.words);
    comm.fabric.leave();
    GOOD
}

extern "C" fn abort(communicator: ncclComm_t) -> ncclResult_t {
    note("abort");
    with(communicator, |_| ());
    COMM.lock().unwrap().take().inspect(|comm| {
        // Sums end with their communicator, and waits for signals do not.
        let sums = 8 * comm.fabric.ranks;
        fabric::fill(comm.words + sums as u64, sums);
        comm.fabric.forget();
    });
    GOOD
}

extern "C" fn error_string(_: ncclResult_t) -> *const c_char {
    c"as it was told to".as_ptr()
}

extern "C" fn allocate(memory: *mut *mut c_void, bytes: usize) -> ncclResult_t {
    note("allocate");
    if fails("allocate") {
        return BAD;
    }
    // SAFETY: an address to write.
    unsafe { *memory = pointer(fabric::allocate(bytes)) };
    GOOD
}

extern "C" fn free(memory: *mut c_void) -> ncclResult_t {
    note("free");
    fabric::free(memory.expose_provenance() as u64);
    GOOD
}

extern "C" fn register(
    communicator: ncclComm_t,
    memory: *mut c_void,
    bytes: usize,
    window: *mut ncclWindow_t,
    flags: c_int,
) -> ncclResult_t {
    note("register");
    assert_eq!(flags, 1);
    let address = memory.expose_provenance() as u64;
    with(communicator, |comm| comm.fabric.share(address, bytes));
    if fails("register") {
        with(communicator, |comm| comm.fabric.memory.remove(&address));
        return BAD;
    }
    // SAFETY: a window to write; here it is called by its memory.
    unsafe { *window = pointer(address) };
    GOOD
}

extern "C" fn deregister(communicator: ncclComm_t, window: ncclWindow_t) -> ncclResult_t {
    note("deregister");
    with(communicator, |comm| comm.fabric.unshare(window.expose_provenance() as u64));
    GOOD
}

extern "C" fn there(window: ncclWindow_t, offset: usize, peer: c_int, to: *mut *mut c_void) -> ncclResult_t {
    if fails("there") {
        return BAD;
    }
    let address = window.expose_provenance() as u64 + offset as u64;
    let there = with(pointer(COMMUNICATOR), |comm| match peer as usize {
        // NCCL has a second address for it, at which nothing is here.
        own if own == comm.fabric.rank => Some(address | OWN),
        other => comm.fabric.there(address, other),
    });
    // SAFETY: an address to write.
    unsafe { *to = pointer(there.expect("a window")) };
    GOOD
}

extern "C" fn signal(
    peer: c_int,
    number: c_int,
    context: c_int,
    flags: c_uint,
    communicator: ncclComm_t,
    stream: CUstream,
) -> ncclResult_t {
    assert_eq!((number, context, flags), (0, 0, 0));
    with(communicator, |comm| comm.connect(false));
    if fails("signal") {
        return BAD;
    }
    with(communicator, |comm| comm.put(stream, false, peer as usize));
    GOOD
}

extern "C" fn wait(
    count: c_int,
    awaited: *mut ncclWaitSignalDesc_t,
    communicator: ncclComm_t,
    stream: CUstream,
) -> ncclResult_t {
    assert_eq!(count, 1);
    // SAFETY: the table's caller passes one description.
    let awaited = unsafe { *awaited };
    assert_eq!((awaited.opCnt, awaited.sigIdx, awaited.ctx), (1, 0, 0));
    with(communicator, |comm| {
        comm.connect(false);
        comm.take(stream, false, awaited.peer as usize);
    });
    GOOD
}

/// Only that it waits for all ranks.
extern "C" fn sum(
    source: *const c_void,
    target: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    communicator: ncclComm_t,
    stream: CUstream,
) -> ncclResult_t {
    assert_eq!((source, count, element, operation), (target.cast_const(), 1, 3, 0));
    with(communicator, |comm| comm.connect(true));
    if fails("sum") {
        return BAD;
    }
    if fails("stream") {
        fabric::capture(stream);
        return GOOD;
    }
    with(communicator, |comm| {
        let others = || 0..comm.fabric.ranks;
        let own = comm.fabric.rank;
        let others = others().filter(|rank| *rank != own).collect::<Vec<_>>();
        others.iter().for_each(|to| comm.put(stream, true, *to));
        others.iter().for_each(|from| comm.take(stream, true, *from));
    });
    GOOD
}
