//! Functions that are passed in call the library back.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_torch::abi::*;

use super::support::*;

/// They stay attached when the test has ended.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static SOURCE_ALONE: AtomicBool = AtomicBool::new(false);
/// From which function what was called, and what came of it.
static CALLED: Mutex<BTreeSet<(&str, &str, c_int)>> = Mutex::new(BTreeSet::new());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls what a careless program might, once at a time.
fn call_back(from: &'static str) {
    let alone = SOURCE_ALONE.load(Ordering::Relaxed) && !from.starts_with("source");
    if !ACTIVE.load(Ordering::Relaxed) || alone || INSIDE.replace(true) {
        return;
    }
    let note = |what, code| {
        CALLED.lock().unwrap().insert((from, what, code));
    };
    let mut block = null_mut();
    // SAFETY: the default stream and a place.
    note("malloc", unsafe { cuda_mem_torch_malloc(0, 3 * MIB, null_mut(), &mut block) });
    if !block.is_null() {
        // SAFETY: as above.
        note("record_stream", unsafe { cuda_mem_torch_record_stream(block, 0, null_mut()) });
        // SAFETY: nothing uses it.
        note("delete", unsafe { cuda_mem_torch_delete(block) });
    }
    let mut stats = cuda_mem_torch_device_stats::default();
    // SAFETY: a place.
    note("stats", unsafe { cuda_mem_torch_stats(0, &mut stats) });
    note("reset_peak_stats", cuda_mem_torch_reset_peak_stats(0));
    note("set_memory_fraction", cuda_mem_torch_set_memory_fraction(0, 1.0));
    note("synchronize", cuda_mem_torch_synchronize(0));
    // SAFETY: no place.
    note("empty_cache", unsafe {
        cuda_mem_torch_empty_cache(CUDA_MEM_TORCH_ALL_DEVICES, NO_POOL, null_mut())
    });
    let nobody =
        cuda_mem_torch_visitor { data: null_mut(), segment: None, block: None, trace: None, tag: None };
    // SAFETY: no functions.
    note("snapshot", unsafe { cuda_mem_torch_snapshot(CUDA_MEM_TORCH_ALL_DEVICES, NO_POOL, true, &nobody) });
    let mut count = 0;
    // SAFETY: a place.
    note("pool_use_count", unsafe { cuda_mem_torch_pool_use_count(0, NO_POOL, &mut count) });
    cuda_mem_torch_is_history_enabled();
    cuda_mem_torch_last_error();
    INSIDE.set(false);
}

unsafe extern "C" fn track(_: *mut c_void, _: *const cuda_mem_torch_trace_entry) {
    call_back("tracker");
}
unsafe extern "C" fn observe(_: *mut c_void, _: i64, _: usize, _: usize, _: usize) {
    call_back("observer");
}
unsafe extern "C" fn reclaim(_: *mut c_void, _: usize) -> bool {
    call_back("reclaimer");
    false
}
unsafe extern "C" fn gather() -> *mut c_void {
    call_back("gather");
    std::ptr::without_provenance_mut(1)
}
unsafe extern "C" fn release(_: *mut c_void) {
    call_back("release of a context");
}
unsafe extern "C" fn every(_: *mut c_void, _: *mut c_void) -> bool {
    call_back("filter");
    true
}
unsafe extern "C" fn release_filter(_: *mut c_void) {
    call_back("release of a filter");
}
unsafe extern "C" fn source_alloc(_: *mut c_void, bytes: usize) -> *mut c_void {
    call_back("source's alloc");
    // SAFETY: the default stream.
    unsafe { cuda_mem_torch_alloc(bytes, 0, null_mut()) }
}
unsafe extern "C" fn source_free(_: *mut c_void, address: *mut c_void, bytes: usize) {
    call_back("source's free");
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(address, bytes, 0, null_mut()) }
}
unsafe extern "C" fn source_release(_: *mut c_void) {
    call_back("source's release");
}
unsafe extern "C" fn told(_: *mut c_void, _: *mut c_void) {
    call_back("restore");
}
unsafe extern "C" fn see_segment(_: *mut c_void, _: *const cuda_mem_torch_segment) {
    call_back("visitor");
}

/// Has each of them be called.
fn use_all() {
    let stream = new_stream().as_raw();
    // SAFETY: a function that may always be called.
    succeed(unsafe { cuda_mem_torch_attach_trace_tracker(Some(track), null_mut()) });
    // SAFETY: a function that may always be called.
    succeed(unsafe { cuda_mem_torch_attach_oom_observer(Some(observe), null_mut()) });
    // SAFETY: a function that may always be called.
    succeed(unsafe { cuda_mem_torch_attach_oom_reclaimer(Some(reclaim), null_mut()) });
    let (gather, release, clear) = (Some(gather as _), Some(release as _), true);
    let options = cuda_mem_torch_history_options {
        max_entries: 10,
        context: 3,
        skip_actions: 0,
        gather,
        release,
        clear,
    };
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_record_history(&options) });
    let pool = user_pool();
    let source = cuda_mem_torch_source {
        data: null_mut(),
        alloc: Some(source_alloc),
        free: Some(source_free),
        release: Some(source_release),
    };
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_create_or_incref_pool(0, pool, &source) });
    let filter = Some(every as unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool);
    // SAFETY: as above.
    succeed(unsafe {
        cuda_mem_torch_begin_allocate_to_pool(0, pool, filter, null_mut(), Some(release_filter))
    });
    let inside = allocate(MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let mut checkpoint = null_mut();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_checkpoint_pool(0, pool, &mut checkpoint) });
    // SAFETY: nothing uses what is restored.
    succeed(unsafe { cuda_mem_torch_restore_pool(0, checkpoint, null_mut(), Some(told), Some(told)) });
    // SAFETY: given back once.
    unsafe { cuda_mem_torch_free_checkpoint(checkpoint) };
    let visitor = cuda_mem_torch_visitor {
        data: null_mut(),
        segment: Some(see_segment),
        block: None,
        trace: None,
        tag: None,
    };
    // SAFETY: a function that may be called.
    succeed(unsafe { cuda_mem_torch_snapshot(0, NO_POOL, true, &visitor) });
    // What the device could have if nobody else had any.
    let most = allocate(6 << 30, stream);
    let mut none = null_mut();
    // SAFETY: a place.
    let code = unsafe { cuda_mem_torch_malloc(0, 4 << 30, stream, &mut none) };
    assert_eq!(code, CUDA_MEM_TORCH_OUT_OF_MEMORY);
    delete(most);
    // The others would empty the cache before.
    SOURCE_ALONE.store(true, Ordering::Relaxed);
    delete(inside);
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    succeed(cuda_mem_torch_synchronize(0));
    empty_cache(pool);
    SOURCE_ALONE.store(false, Ordering::Relaxed);
    empty_cache(NO_POOL);
    succeed(cuda_mem_torch_stop_history());
}

#[test]
fn functions_that_are_passed_in_may_call_back() {
    let _turn = turn();
    ACTIVE.store(true, Ordering::Relaxed);
    use_all();
    ACTIVE.store(false, Ordering::Relaxed);
    let called = CALLED.lock().unwrap();
    let from: BTreeSet<_> = called.iter().map(|(from, ..)| *from).collect();
    assert_eq!(from.len(), 12, "{from:?}");
    let accepted = [CUDA_MEM_TORCH_OK, CUDA_MEM_TORCH_IN_CALLBACK];
    for (from, what, code) in called.iter() {
        assert!(accepted.contains(code), "{what} from the {from}: {code}");
    }
}

#[test]
fn what_is_missing_or_unknown_is_refused() {
    let _turn = turn();
    let nowhere = std::ptr::without_provenance_mut::<c_void>(0x10);
    let refused = CUDA_MEM_TORCH_INVALID_ARGUMENT;
    for device in [-2, -1, 3, 64, c_int::MAX, c_int::MIN] {
        let mut block = null_mut();
        // SAFETY: a place.
        let code = unsafe { cuda_mem_torch_malloc(device, 512, null_mut(), &mut block) };
        assert_eq!(code, refused, "{device}");
        assert!(block.is_null() && message().contains(&format!("the device is {device}")), "{}", message());
        assert_eq!(cuda_mem_torch_synchronize(device), refused);
        assert_eq!(cuda_mem_torch_set_memory_fraction(device, 1.0), refused);
        assert_eq!(cuda_mem_torch_release_pool(device, NO_POOL), refused);
        // SAFETY: the default stream.
        assert!(unsafe { cuda_mem_torch_alloc(512, device, null_mut()) }.is_null());
        // SAFETY: not given back by anybody.
        unsafe { cuda_mem_torch_free(nowhere, 512, device, null_mut()) };
    }
    for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(cuda_mem_torch_set_memory_fraction(0, fraction), refused, "{fraction}");
    }
    let codes = [
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_malloc(0, 512, null_mut(), null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_stats(0, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_memory_fraction(0, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_cache_info(0, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_snapshot(0, NO_POOL, true, null()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_write_snapshot(null()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_record_history(null()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_set_options(null()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_attach_oom_observer(None, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_restore_pool(0, null(), null_mut(), None, None) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_checkpoint_pool(0, NO_POOL, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_ipc_open(0, null(), 9, null_mut()) },
        // SAFETY: nothing is passed that would be used.
        unsafe { cuda_mem_torch_symm_barrier(null(), null_mut(), 0, 0) },
    ];
    assert!(codes.iter().all(|code| *code == refused), "{codes:?}");
    // SAFETY: nothing.
    unsafe { cuda_mem_torch_free_checkpoint(null_mut()) };
    // SAFETY: nothing.
    succeed(unsafe { cuda_mem_torch_delete(null_mut()) });
    // SAFETY: nothing.
    succeed(unsafe { cuda_mem_torch_symm_close(null_mut()) });
    let (mut base, mut bytes) = (null_mut(), 0);
    for unknown in [nowhere, std::ptr::without_provenance_mut(usize::MAX), null_mut()] {
        let codes = [
            // SAFETY: places; the address is looked up and not used.
            unsafe { cuda_mem_torch_base_allocation(unknown, &mut base, &mut bytes) },
            // SAFETY: as above.
            unsafe { cuda_mem_torch_record_stream(unknown, 0, null_mut()) },
            // SAFETY: as above.
            unsafe { cuda_mem_torch_ipc_close(unknown) },
        ];
        assert_eq!(codes, [CUDA_MEM_TORCH_NOT_OURS; 3]);
        assert_eq!(cuda_mem_torch_device_of(unknown), -1);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { cuda_mem_torch_delete(nowhere) }, CUDA_MEM_TORCH_NOT_OURS);
}
