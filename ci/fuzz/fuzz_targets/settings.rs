//! Any text is settings or an error that says why, and nothing between: `cargo +nightly fuzz run settings`.

#![no_main]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use cuda_mem_torch::abi;
use libfuzzer_sys::fuzz_target;

unsafe extern "C" fn noted(count: *mut c_void, text: *const c_char) {
    // SAFETY: what was passed, and text.
    let (count, text) = unsafe { (&mut *count.cast::<usize>(), CStr::from_ptr(text)) };
    assert!(!text.is_empty());
    *count += 1;
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = CString::new(bytes) else { return };
    let mut notes = 0usize;
    // SAFETY: text, and a function that takes the count.
    let code = unsafe { abi::cuda_mem_torch_set_settings(text.as_ptr(), (&raw mut notes).cast(), Some(noted)) };
    if code != abi::CUDA_MEM_TORCH_OK {
        assert_eq!((code, notes), (abi::CUDA_MEM_TORCH_INVALID_ARGUMENT, 0));
        // SAFETY: text of this thread, which lives until its next call.
        assert!(!unsafe { CStr::from_ptr(abi::cuda_mem_torch_last_error()) }.is_empty());
    } else {
        // What was accepted is accepted again.
        // SAFETY: as above; without a function.
        let again = unsafe { abi::cuda_mem_torch_set_settings(text.as_ptr(), ptr::null_mut(), None) };
        assert_eq!(again, code);
    }
});
