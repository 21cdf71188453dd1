//! Tags: scopes, sleep, wake, what is kept, and who is told.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use cuda_mem_torch::abi::*;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::copy::{memcpy_async, memset_async};

use super::support::*;

/// What a function was given to be passed first.
fn passed<'d, T>(data: *mut c_void) -> &'d mut T {
    // SAFETY: a `T` of the test, which lives during the call that passes it.
    unsafe { &mut *data.cast() }
}

fn words(text: *const c_char) -> CString {
    // SAFETY: text.
    unsafe { CStr::from_ptr(text) }.to_owned()
}

/// Allocates in a scope of the tag.
fn allocate_in(tag: &CStr, bytes: usize, stream: *mut c_void) -> *mut c_void {
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_enter_tag(0, tag.as_ptr()) });
    let block = allocate(bytes, stream);
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_leave_tag(0, tag.as_ptr()) });
    block
}

fn sleep(
    tag: &CStr,
    backup: c_int,
    visitor: *const cuda_mem_torch_sleep_visitor,
) -> (c_int, cuda_mem_torch_slept) {
    let (names, mut slept) = ([tag.as_ptr()], cuda_mem_torch_slept::default());
    // SAFETY: one text, a place, and functions that may be called; nothing uses what sleeps.
    (unsafe { cuda_mem_torch_sleep(0, names.as_ptr(), 1, backup, &mut slept, visitor) }, slept)
}

fn wake(tag: &CStr, restore: c_int, visitor: *const cuda_mem_torch_sleep_visitor) -> c_int {
    let names = [tag.as_ptr()];
    // SAFETY: one text, and functions that may be called.
    unsafe { cuda_mem_torch_wake(0, names.as_ptr(), 1, restore, visitor) }
}

/// The tags of the first device with what they have awake, asleep and for backups, and whether they sleep.
fn states() -> Vec<(String, cuda_mem_torch_tag_state)> {
    type Found = Vec<(String, cuda_mem_torch_tag_state)>;
    unsafe extern "C" fn tell(
        data: *mut c_void,
        device: c_int,
        tag: *const c_char,
        state: *const cuda_mem_torch_tag_state,
    ) {
        assert_eq!(device, 0);
        // SAFETY: a state.
        let state = unsafe { *state };
        passed::<Found>(data).push((words(tag).into_string().unwrap(), state));
    }
    let mut found = Found::new();
    // SAFETY: a function that may be called.
    succeed(unsafe { cuda_mem_torch_tags(0, (&raw mut found).cast(), Some(tell)) });
    found
}

fn state(tag: &CStr) -> cuda_mem_torch_tag_state {
    states().into_iter().find(|(name, _)| name == tag.to_str().unwrap()).unwrap().1
}

fn bytes(stream: &Stream, block: *mut c_void) -> [u8; 64] {
    let host = [0u8; 64];
    let to = host.as_ptr().expose_provenance() as u64;
    // SAFETY: as many bytes on the host, which live until the wait is over.
    unsafe { memcpy_async(stream, to, block.addr() as u64, 64) }.unwrap();
    stream.synchronize().unwrap();
    // SAFETY: live bytes, which the device wrote.
    unsafe { host.as_ptr().cast::<[u8; 64]>().read_volatile() }
}

fn reserved() -> i64 {
    stats().reserved_bytes.all.current
}

#[test]
fn a_tag_sleeps_and_wakes() {
    let _turn = turn();
    let (stream, tag) = (new_stream(), c"abi weights");
    let block = allocate_in(tag, 30 * MIB, stream.as_raw());
    let outside = allocate(MIB, stream.as_raw());
    let segments = snapshot(NO_POOL).segments;
    let of_tag = segments.iter().find(|segment| segment.address == block).unwrap();
    // PyTorch counts its pools by itself: none of its names may be a tag's.
    assert!(of_tag.pool.first != 0 && of_tag.pool.second != 0, "{:?}", of_tag.pool);
    // SAFETY: the block's own memory.
    unsafe { memset_async(stream, block.addr() as u64, 9, 30 * MIB) }.unwrap();
    let before = reserved();
    let (code, slept) = sleep(tag, CUDA_MEM_TORCH_BACKUP_PINNED, null());
    succeed(code);
    assert_eq!(slept, cuda_mem_torch_slept { freed: 30 * MIB, saved: 30 * MIB, missing: 0 });
    assert_eq!(reserved(), before - (30 << 20));
    let asleep = state(tag);
    assert_eq!((asleep.is_asleep, asleep.awake_bytes, asleep.asleep_bytes), (true, 0, 30 * MIB));

    // What it has can be read, and whose it is asked; it takes no allocation.
    let (mut read, mut found) = ([0u8; 100], 0);
    // SAFETY: a hundred bytes and a place.
    succeed(unsafe { cuda_mem_torch_read_backup(block, read.as_mut_ptr().cast(), 100, &mut found) });
    assert_eq!((found, read), (100, [9; 100]));
    unsafe extern "C" fn told(data: *mut c_void, device: c_int, tag: *const c_char, is_asleep: bool) {
        passed::<Vec<(c_int, CString, bool)>>(data).push((device, words(tag), is_asleep));
    }
    let mut of = Vec::<(c_int, CString, bool)>::new();
    // SAFETY: a function that may be called.
    succeed(unsafe { cuda_mem_torch_tag_of(block, (&raw mut of).cast(), Some(told)) });
    assert_eq!(of, [(0, tag.to_owned(), true)]);
    // No other process gets it.
    let (mut length, mut offset) = (0, 0);
    // SAFETY: two places.
    let code = unsafe { cuda_mem_torch_ipc_share(block, 2, null_mut(), 0, &mut length, &mut offset) };
    assert_eq!(code, CUDA_MEM_TORCH_UNSUPPORTED);
    assert!(
        message().contains("is of the tag \"abi weights\", and memory of tags is not shared"),
        "{}",
        message()
    );
    // SAFETY: as above.
    let none = unsafe { cuda_mem_torch_tag_of(outside, (&raw mut of).cast(), Some(told)) };
    assert_eq!((none, of.len()), (CUDA_MEM_TORCH_NOT_OURS, 1));
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_enter_tag(0, tag.as_ptr()) });
    let mut refused = null_mut();
    // SAFETY: a live stream and a place.
    let code = unsafe { cuda_mem_torch_malloc(0, 1000, stream.as_raw(), &mut refused) };
    assert_eq!((code, refused), (CUDA_MEM_TORCH_SLEEP, null_mut()));
    assert!(message().contains("\"abi weights\" sleeps: wake it"), "{}", message());
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_leave_tag(0, tag.as_ptr()) });

    succeed(wake(tag, CUDA_MEM_TORCH_RESTORE_BACKUP, null()));
    assert_eq!(bytes(stream, block), [9; 64]);
    succeed(sleep(tag, CUDA_MEM_TORCH_BACKUP_DISCARD, null()).0);
    succeed(wake(tag, 200, null()));
    assert_eq!(bytes(stream, block), [200; 64]);
    let mut given = 0;
    // SAFETY: text and a place.
    succeed(unsafe { cuda_mem_torch_release_backup(0, tag.as_ptr(), &mut given) });
    assert_eq!((given, state(tag).backup_bytes), (30 * MIB, 0));
    // SAFETY: text and a place.
    succeed(unsafe { cuda_mem_torch_prepare_backup(0, tag.as_ptr(), &mut given) });
    assert_eq!((given, state(tag).backup_bytes), (30 * MIB, 30 * MIB));
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_release_backup(0, tag.as_ptr(), null_mut()) });
    [block, outside].into_iter().for_each(delete);
}

#[test]
fn what_is_kept_and_who_was_told_is_told() {
    #[derive(Default)]
    struct Came {
        kept: Vec<(usize, usize, usize, CString)>,
        notices: Vec<(u64, Option<CString>)>,
    }
    static HEARD: Mutex<Vec<(CString, bool, usize)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn kept(
        data: *mut c_void,
        range: cuda_mem_torch_range,
        stayed: usize,
        reason: *const c_char,
    ) {
        passed::<Came>(data).kept.push((range.address.addr(), range.bytes, stayed, words(reason)));
    }
    unsafe extern "C" fn notice(data: *mut c_void, registrant: u64, _: u64, error: *const c_char) {
        let error = (!error.is_null()).then(|| words(error));
        passed::<Came>(data).notices.push((registrant, error));
    }
    unsafe extern "C" fn change(
        data: *mut c_void,
        device: c_int,
        tag: *const c_char,
        is_leaving: bool,
        ranges: *const cuda_mem_torch_range,
        count: usize,
    ) -> c_int {
        assert_eq!(device, 0);
        // SAFETY: as many ranges.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
        let bytes = ranges.iter().map(|range| range.bytes).sum();
        HEARD.lock().unwrap().push((words(tag), is_leaving, bytes));
        // The second one fails.
        c_int::from(!data.is_null())
    }
    let _turn = turn();
    let (stream, tag) = (new_stream(), c"abi kept");
    let [block, other] = [64 * MIB, 96 * MIB].map(|bytes| allocate_in(tag, bytes, stream.as_raw()));
    let (mut first, mut second, mut keep) = (0, 0, null_mut());
    // SAFETY: functions that may be called until they are detached, and places.
    succeed(unsafe { cuda_mem_torch_attach_backing_change(Some(change), null_mut(), &mut first) });
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_attach_backing_change(Some(change), block, &mut second) });
    // SAFETY: text and a place.
    succeed(unsafe { cuda_mem_torch_keep(block, 1000, c"a library".as_ptr(), &mut keep) });
    let mut came = Came::default();
    let visitor = cuda_mem_torch_sleep_visitor {
        data: (&raw mut came).cast(),
        kept: Some(kept),
        refused: None,
        notice: Some(notice),
    };
    let (code, slept) = sleep(tag, CUDA_MEM_TORCH_BACKUP_DISCARD, &visitor);
    succeed(code);
    assert_eq!(slept.freed, 96 * MIB);
    succeed(wake(tag, CUDA_MEM_TORCH_RESTORE_NOTHING, &visitor));
    assert_eq!(came.kept, [(block.addr(), 1000, 64 * MIB, c"a library".to_owned())]);
    let failed = Some(c"it returned 1".to_owned());
    let both = [(first, None), (second, failed)];
    assert_eq!(came.notices, [both.clone(), both].concat());
    let twice = |leaving| vec![(tag.to_owned(), leaving, 96 * MIB); 2];
    assert_eq!(*HEARD.lock().unwrap(), [twice(true), twice(false)].concat());
    // SAFETY: what was kept, once.
    succeed(unsafe { cuda_mem_torch_let_move(keep) });
    // What is held still for who registered it stays too.
    let mut still = null_mut();
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_hold_still(block, 1, &mut still) });
    let (code, slept) = sleep(tag, CUDA_MEM_TORCH_BACKUP_DISCARD, null());
    succeed(code);
    assert_eq!(slept.freed, 96 * MIB);
    // SAFETY: what was held, once.
    succeed(unsafe { cuda_mem_torch_let_move(still) });
    succeed(wake(tag, CUDA_MEM_TORCH_RESTORE_NOTHING, null()));
    [first, second].into_iter().for_each(|number| succeed(cuda_mem_torch_detach_backing_change(number)));
    let (code, slept) = sleep(tag, CUDA_MEM_TORCH_BACKUP_DISCARD, null());
    succeed(code);
    assert_eq!((slept.freed, HEARD.lock().unwrap().len()), (160 * MIB, 8));
    succeed(wake(tag, CUDA_MEM_TORCH_RESTORE_NOTHING, null()));
    [block, other].into_iter().for_each(|block| delete(block));
    let refusals: [(&dyn Fn() -> c_int, &str); 5] = [
        (&|| cuda_mem_torch_detach_backing_change(first), "there is no registrant"),
        (
            &|| sleep(c"mistyped", CUDA_MEM_TORCH_BACKUP_PINNED, null()).0,
            "has no tag \"mistyped\"; it has \"abi ",
        ),
        (&|| sleep(tag, 7, null()).0, "backup is 7; accepted: 0 (pinned), 1 (discard)"),
        (
            &|| wake(tag, 256, null()),
            "restore is 256; accepted: -1 (the backup), -2 (nothing), a byte from 0 to 255",
        ),
        // SAFETY: text.
        (&|| unsafe { cuda_mem_torch_leave_tag(0, tag.as_ptr()) }, "in no scope of the tag \"abi kept\""),
    ];
    for (call, said) in refusals {
        assert_eq!(call(), CUDA_MEM_TORCH_INVALID_ARGUMENT, "{said}");
        assert!(message().contains(said), "{}", message());
    }
}

#[test]
fn a_pool_is_given_to_a_tag_and_a_limit_set() {
    let _turn = turn();
    let (stream, tag, pool) = (new_stream().as_raw(), c"abi pools", user_pool());
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_add_pool_to_tag(0, tag.as_ptr(), pool) });
    // SAFETY: without a filter all is accepted.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let block = allocate(12 * MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    assert_eq!(state(tag).awake_bytes, 12 * MIB);
    let (code, slept) = sleep(tag, CUDA_MEM_TORCH_BACKUP_DISCARD, null());
    succeed(code);
    assert_eq!(slept.freed, 12 * MIB);
    // What is free goes at once, and what sleeps has no room.
    let (mut freed, before) = (0, reserved());
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_set_limit(0, MIB, &mut freed) });
    assert_eq!(reserved(), before - freed as i64);
    assert_eq!(wake(tag, CUDA_MEM_TORCH_RESTORE_NOTHING, null()), CUDA_MEM_TORCH_OUT_OF_MEMORY);
    assert!(message().contains("waking takes 12582912 bytes, of which"), "{}", message());
    assert!(state(tag).is_asleep);
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_set_limit(0, usize::MAX, null_mut()) });
    succeed(wake(tag, CUDA_MEM_TORCH_RESTORE_NOTHING, null()));
    delete(block);
    succeed(cuda_mem_torch_release_pool(0, pool));
    assert_eq!(empty_cache(pool), 12 * MIB);
}

/// Listeners of other kinds have numbers too, which nobody is told.
#[test]
fn the_number_of_another_listener_detaches_nobody() {
    unsafe extern "C" fn observe(_: *mut c_void, _: i64, _: usize, _: usize, _: usize) {}
    unsafe extern "C" fn change(
        _: *mut c_void,
        _: c_int,
        _: *const c_char,
        _: bool,
        _: *const cuda_mem_torch_range,
        _: usize,
    ) -> c_int {
        0
    }
    let _turn = turn();
    let mut number = 0;
    // SAFETY: a function that may always be called, and a place.
    succeed(unsafe { cuda_mem_torch_attach_backing_change(Some(change), null_mut(), &mut number) });
    // SAFETY: a function that may always be called.
    succeed(unsafe { cuda_mem_torch_attach_oom_observer(Some(observe), null_mut()) });
    let refused = CUDA_MEM_TORCH_INVALID_ARGUMENT;
    for other in [number + 1, 0] {
        assert_eq!(cuda_mem_torch_detach_backing_change(other), refused);
    }
    succeed(cuda_mem_torch_detach_backing_change(number));
    assert_eq!(cuda_mem_torch_detach_backing_change(number), refused, "it is gone");
}
