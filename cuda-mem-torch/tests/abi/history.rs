//! History, contexts and trackers.

use std::ffi::{OsString, c_char, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_torch::abi::*;

use super::support::*;

static GATHERED: AtomicUsize = AtomicUsize::new(0);
static RELEASED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn gather() -> *mut c_void {
    without_provenance_mut(0x1000 + GATHERED.fetch_add(1, Ordering::Relaxed))
}

unsafe extern "C" fn release(context: *mut c_void) {
    assert!(context.addr() >= 0x1000);
    RELEASED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn contexts_come_with_entries_and_blocks_and_are_released() {
    static TRACKED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn track(data: *mut c_void, entry: *const cuda_mem_torch_trace_entry) {
        assert_eq!(data.addr(), 77);
        // SAFETY: an entry.
        if unsafe { (*entry).action } == 0 {
            TRACKED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let _turn = turn();
    let stream = new_stream().as_raw();
    // SAFETY: a function that may be called.
    succeed(unsafe { cuda_mem_torch_attach_trace_tracker(Some(track), without_provenance_mut(77)) });
    let options = cuda_mem_torch_history_options {
        max_entries: 10_000,
        context: 2,
        skip_actions: 1 << 1, // free_requested
        gather: Some(gather),
        release: Some(release),
        clear: true,
    };
    // SAFETY: functions that may be called.
    succeed(unsafe { cuda_mem_torch_record_history(&options) });
    assert!(cuda_mem_torch_is_history_enabled());
    // SAFETY: texts.
    succeed(unsafe { cuda_mem_torch_set_user_metadata(c"step 1".as_ptr()) });
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_push_compile_context(c"graph 0".as_ptr()) });
    let block = allocate(3 * MIB, stream);
    succeed(cuda_mem_torch_pop_compile_context());
    // SAFETY: no text.
    succeed(unsafe { cuda_mem_torch_set_user_metadata(null()) });
    delete(block);
    let kept = allocate(MIB, stream);

    let seen = snapshot(NO_POOL);
    let alloc = seen.traces.iter().find(|(action, ..)| *action == 0).unwrap();
    assert!(alloc.1 >= 0x1000);
    assert_eq!((alloc.2.as_str(), alloc.3.as_str()), ("graph 0", "step 1"));
    assert!(seen.traces.iter().all(|(action, ..)| *action != 1), "skipped");
    let freed = seen.traces.iter().find(|(action, ..)| *action == 2).unwrap();
    assert_eq!(freed.1, alloc.1, "at this level a free has the context of its allocation");
    let block = seen.blocks.iter().find(|block| block.address == kept).unwrap();
    assert!(block.context.addr() >= 0x1000);
    assert_eq!(TRACKED.load(Ordering::Relaxed), 2);

    delete(kept);
    // Those that nobody has any more are released now and then.
    for _ in 0..5000 {
        delete(allocate(MIB, stream));
    }
    let options = cuda_mem_torch_history_options { max_entries: 1, ..options };
    // SAFETY: functions that may be called.
    succeed(unsafe { cuda_mem_torch_record_history(&options) });
    for _ in 0..20_000 {
        delete(allocate(MIB, stream));
    }
    succeed(cuda_mem_torch_stop_history());
    assert!(!cuda_mem_torch_is_history_enabled());
    let left = GATHERED.load(Ordering::Relaxed) - RELEASED.load(Ordering::Relaxed);
    assert!(left < 2000, "{left} are left");
    assert!(snapshot(NO_POOL).traces.is_empty());

    let bad = cuda_mem_torch_history_options { context: 4, ..options };
    // SAFETY: refused.
    assert_eq!(unsafe { cuda_mem_torch_record_history(&bad) }, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn what_goes_back_is_told_with_its_stack_where_frees_are() {
    let _turn = turn();
    let (segment_map, segment_unmap) = (5, 6);
    for (context, expected) in [(1, [false, false]), (2, [true, false]), (3, [true, true])] {
        empty_cache(NO_POOL);
        let options = cuda_mem_torch_history_options {
            max_entries: 1000,
            context,
            skip_actions: 0,
            gather: Some(gather),
            release: Some(release),
            clear: true,
        };
        // SAFETY: functions that may be called.
        succeed(unsafe { cuda_mem_torch_record_history(&options) });
        delete(allocate(3 * MIB, new_stream().as_raw()));
        assert!(empty_cache(NO_POOL) > 0, "it waits for what still uses the block");
        let seen = snapshot(NO_POOL);
        let with_stack = [segment_map, segment_unmap].map(|wanted| {
            let mut of = seen.traces.iter().filter(|(action, ..)| *action == wanted).peekable();
            assert!(of.peek().is_some(), "{wanted}: {:?}", seen.traces);
            of.all(|(_, context, ..)| *context != 0)
        });
        assert_eq!(with_stack, expected, "context {context}");
        succeed(cuda_mem_torch_stop_history());
    }
}

#[test]
fn the_snapshot_of_a_pool_has_the_history() {
    let _turn = turn();
    let (stream, pool) = (new_stream().as_raw(), user_pool());
    let options = cuda_mem_torch_history_options {
        max_entries: 1000,
        context: 0,
        skip_actions: 0,
        gather: None,
        release: None,
        clear: true,
    };
    // SAFETY: no functions.
    succeed(unsafe { cuda_mem_torch_record_history(&options) });
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let inside = allocate(3 * MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let outside = allocate(3 * MIB, stream);
    let seen = snapshot(pool);
    let allocated = seen.traces.iter().filter(|(action, ..)| *action == 0).count();
    assert_eq!((seen.segments.len(), allocated), (1, 2), "its segments, and what happened anywhere");
    succeed(cuda_mem_torch_stop_history());
    assert!(snapshot(pool).traces.is_empty());
    [inside, outside].into_iter().for_each(delete);
    succeed(cuda_mem_torch_release_pool(0, pool));
}

#[test]
fn a_page_is_drawn_of_a_snapshot() {
    static STAGES: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn count(data: *mut c_void, _: *const c_char, _: u64, _: u64) {
        // SAFETY: what is passed below.
        unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    }
    let _turn = turn();
    let block = allocate(3 * MIB, new_stream().as_raw());
    let file = |name: &str| format!("{}/{name}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    // Bytes of the file system, which need not be UTF-8.
    let paths = [file("report.pickle"), file("report.html")].map(|path| [path.as_bytes(), b"\xff"].concat());
    let texts = paths.clone().map(|path| std::ffi::CString::new(path).unwrap());
    let [pickle, page] = paths.map(|path| PathBuf::from(OsString::from_vec(path)));
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_write_snapshot(texts[0].as_ptr()) });
    let recording =
        cuda_mem_torch_recording { path: texts[0].as_ptr(), data: null(), size: 0, name: c"a test".as_ptr() };
    let draw = |recording: &cuda_mem_torch_recording| {
        let drawing = cuda_mem_torch_drawing {
            inputs: recording,
            count: 1,
            before: null(),
            title: null(),
            device: 0,
            page: texts[1].as_ptr(),
            perfetto: null(),
            folded: null(),
            data: (&raw const STAGES).cast_mut().cast(),
            progress: Some(count),
        };
        // SAFETY: recordings, texts and a function that may be called with the number.
        unsafe { cuda_mem_torch_draw(&drawing) }
    };
    succeed(draw(&recording));
    assert!(STAGES.load(Ordering::Relaxed) > 0, "it was told how far it is");
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(drawn.contains("a test"));
    let bytes = std::fs::read(&pickle).unwrap();
    let of_bytes = |size| cuda_mem_torch_recording { path: null(), data: bytes.as_ptr(), size, ..recording };
    succeed(draw(&of_bytes(bytes.len())));
    assert_eq!(draw(&of_bytes(bytes.len() / 2)), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert!(message().contains("a test"), "{}", message());
    let nowhere = cuda_mem_torch_recording { path: c"/nowhere/a.pickle".as_ptr(), ..recording };
    assert_eq!(draw(&nowhere), CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert!(message().contains("/nowhere/a.pickle"), "{}", message());
    delete(block);
    std::fs::remove_file(pickle).unwrap();
    std::fs::remove_file(page).unwrap();
}

#[test]
fn the_viewers_file_is_written() {
    let _turn = turn();
    let block = allocate(MIB, null_mut());
    let path = std::env::temp_dir().join(format!("cuda-mem-torch-{}.pickle", std::process::id()));
    let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_write_snapshot(text.as_ptr()) });
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(written.starts_with(b"\x80\x02") && written.ends_with(b"."));
    // SAFETY: text.
    let code = unsafe { cuda_mem_torch_write_snapshot(c"/nowhere/at/all".as_ptr()) };
    assert_eq!(code, CUDA_MEM_TORCH_SYSTEM);
    assert!(message().contains("/nowhere/at/all"));
    delete(block);
}

#[test]
fn who_only_asks_for_the_sizes_of_segments_makes_no_context() {
    unsafe extern "C" fn count(data: *mut c_void, _: *mut c_void, _: bool, _: u64) {
        // SAFETY: what is passed below.
        unsafe { *data.cast::<usize>() += 1 };
    }
    let _turn = turn();
    let mut sizes = 0usize;
    let asked = calls(|| {
        // SAFETY: a function that may be called with this number.
        succeed(unsafe { cuda_mem_torch_expandable_segment_sizes(2, (&raw mut sizes).cast(), Some(count)) });
    });
    assert!(!asked.contains(&"cuDevicePrimaryCtxRetain"), "{asked:?}");
    assert_eq!(sizes, 0);
    let block = allocate(MIB, null_mut());
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_expandable_segment_sizes(0, (&raw mut sizes).cast(), Some(count)) });
    assert!(sizes > 0);
    delete(block);
}
