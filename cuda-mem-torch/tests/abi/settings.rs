//! Settings, by text and by structure.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use cuda_mem_torch::abi::*;

use super::support::*;

#[test]
fn statistics_name_the_largest_block_that_is_split() {
    let _turn = turn();
    delete(allocate(MIB, null_mut()));
    // The last device is used by none.
    let told = || {
        [0, 2].map(|device| {
            let mut stats = cuda_mem_torch_device_stats::default();
            // SAFETY: a place.
            succeed(unsafe { cuda_mem_torch_stats(device, &mut stats) });
            stats.max_split_size
        })
    };
    assert_eq!(told(), [-1, -1]);
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_set_settings(c"max_split_size_mb:64".as_ptr(), null_mut(), None) });
    assert_eq!(told(), [64 << 20, 64 << 20]);
    // SAFETY: as above.
    succeed(unsafe { cuda_mem_torch_set_settings(c"".as_ptr(), null_mut(), None) });
    assert_eq!(told(), [-1, -1]);
}

#[test]
fn settings_hold_for_private_pools() {
    unsafe extern "C" fn note(data: *mut c_void, text: *const c_char) {
        // SAFETY: text.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
        // SAFETY: the list that is passed below.
        unsafe { &mut *data.cast::<Vec<String>>() }.push(text);
    }
    let _turn = turn();
    let mut notes: Vec<String> = Vec::new();
    let data = (&raw mut notes).cast();
    let text = c"large_segment_size_mb:32,expandable_segments:True,expandable_segments_reserve:0.5";
    // SAFETY: text, and a function that may be called.
    succeed(unsafe { cuda_mem_torch_set_settings(text.as_ptr(), data, Some(note)) });
    assert_eq!(
        notes,
        ["expandable_segments_reserve:0.5 changes nothing: addresses are reserved as they are needed"]
    );

    let pool = user_pool();
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let block = allocate(2 * MIB, new_stream().as_raw());
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    assert_eq!(snapshot(pool).segments[0].total_size, 32 << 20);
    delete(block);
    succeed(cuda_mem_torch_release_pool(0, pool));

    let options = cuda_mem_torch_options {
        large_segment_size: 20 << 20,
        max_split_size: u64::MAX,
        max_non_split_rounding_size: 20 << 20,
        roundup_power2_divisions: [0; 16],
        garbage_collection_threshold: 0.0,
    };
    // SAFETY: options.
    succeed(unsafe { cuda_mem_torch_set_options(&options) });
    let bad = cuda_mem_torch_options { max_split_size: 1, ..options };
    // SAFETY: options, which are refused.
    assert_eq!(unsafe { cuda_mem_torch_set_options(&bad) }, CUDA_MEM_TORCH_INVALID_ARGUMENT);
    assert!(message().contains("max_split_size is 1 bytes"), "{}", message());
    // SAFETY: text.
    let code = unsafe { cuda_mem_torch_set_settings(c"max_split:1".as_ptr(), null_mut(), None) };
    assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
}

#[test]
fn sizes_are_rounded_in_both_kinds_of_pool() {
    let _turn = turn();
    let set = |text: &CStr| {
        // SAFETY: text.
        succeed(unsafe { cuda_mem_torch_set_settings(text.as_ptr(), null_mut(), None) });
    };
    let counted = || {
        let mut stats = cuda_mem_torch_device_stats::default();
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_stats(0, &mut stats) });
        (stats.active_bytes.all.allocated, stats.requested_bytes.all.allocated)
    };
    let stream = new_stream();
    let rounded = |bytes: usize| {
        let before = counted();
        let block = allocate(bytes, stream.as_raw());
        let after = counted();
        delete(block);
        assert_eq!(after.1 - before.1, bytes as i64);
        after.0 - before.0
    };
    set(c"roundup_power2_divisions:[16:8,32:2,>:1]");
    let pool = user_pool();
    for routed in [false, true] {
        if routed {
            // SAFETY: no filter.
            succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
        }
        assert_eq!([17 * MIB, 33 * MIB, 66 * MIB].map(rounded), [18 << 20, 48 << 20, 66 << 20]);
    }
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    succeed(cuda_mem_torch_release_pool(0, pool));
    set(c"");
    assert_eq!(rounded(33 * MIB), 33 << 20);
}

#[test]
fn memory_is_pinned_by_its_address() {
    let _turn = turn();
    let mut memory = vec![0u8; 8192];
    let address = memory.as_mut_ptr().cast();
    // SAFETY: it lives until it is unpinned.
    succeed(unsafe { cuda_mem_torch_pin_memory(address, 8192) });
    // SAFETY: as above.
    let again = unsafe { cuda_mem_torch_pin_memory(address, 8192) };
    assert_eq!((again, cuda_mem_torch_last_driver_code()), (CUDA_MEM_TORCH_DRIVER, 712));
    // SAFETY: no device uses it.
    succeed(unsafe { cuda_mem_torch_unpin_memory(address) });
}

#[test]
fn asking_about_a_device_makes_no_context_on_it() {
    const DEVICE: i32 = 2;
    let _turn = turn();
    let (mut stats, mut count, mut fraction) = (cuda_mem_torch_device_stats::default(), 7, 0.0);
    let calls = calls(|| {
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_stats(DEVICE, &mut stats) });
        succeed(cuda_mem_torch_reset_peak_stats(DEVICE));
        succeed(cuda_mem_torch_reset_accumulated_stats(DEVICE));
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_pool_use_count(DEVICE, user_pool(), &mut count) });
        succeed(cuda_mem_torch_set_memory_fraction(DEVICE, 0.5));
        assert_eq!(cuda_mem_torch_set_memory_fraction(DEVICE, 1.5), CUDA_MEM_TORCH_INVALID_ARGUMENT);
        cuda_mem_torch_plain_memory_fraction(0.001, DEVICE);
        // SAFETY: a place.
        succeed(unsafe { cuda_mem_torch_memory_fraction(DEVICE, &mut fraction) });
    });
    assert!(!calls.contains(&"cuDevicePrimaryCtxRetain"), "{calls:?}");
    assert_eq!((stats.allocated_bytes.all.current, count, fraction), (0, 0, 0.5));
    // SAFETY: a place; there is no such device.
    let code = unsafe { cuda_mem_torch_stats(3, &mut stats) };
    assert_eq!(code, CUDA_MEM_TORCH_INVALID_ARGUMENT);
    // Once it is used, it is as it was set.
    // SAFETY: the default stream.
    succeed(unsafe { cuda_mem_torch_see_stream(DEVICE, null_mut()) });
    // SAFETY: a place.
    succeed(unsafe { cuda_mem_torch_memory_fraction(DEVICE, &mut fraction) });
    assert_eq!(fraction, 0.5);
    let plain = |bytes| {
        // SAFETY: the default stream.
        unsafe { cuda_mem_torch_alloc(bytes, DEVICE, null_mut()) }
    };
    assert!(plain(64 * MIB).is_null());
    let block = plain(2 * MIB);
    assert!(!block.is_null());
    // SAFETY: nothing uses it.
    unsafe { cuda_mem_torch_free(block, 2 * MIB, DEVICE, null_mut()) };
}
