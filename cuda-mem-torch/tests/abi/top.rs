//! What this process says of itself to `top`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use cuda_mem_torch::abi::*;

use super::support::*;

#[test]
fn a_process_says_what_its_streams_and_pools_have() {
    let _turn = turn();
    let stream = new_stream().as_raw();
    let block = allocate(40 * MIB, stream);
    let figures = cuda_mem_top::ask(std::process::id()).unwrap();
    let device = figures.devices.iter().find(|device| device.ordinal == 0).unwrap();
    assert_eq!(device.uuid, context().device().uuid().unwrap());
    let part = device.parts.iter().find(|part| part.stream == stream.addr() as u64).unwrap();
    assert_eq!((part.live, part.pool), (40 * MIB as u64, None));
    assert!(part.reserved >= part.live && device.reserved >= part.reserved);
    let live: u64 = device.parts.iter().map(|part| part.live).sum();
    assert_eq!(live, device.live, "the parts are all of it");

    let pool = user_pool();
    // SAFETY: no filter.
    succeed(unsafe { cuda_mem_torch_begin_allocate_to_pool(0, pool, None, null_mut(), None) });
    let of_pool = allocate(5 * MIB, stream);
    succeed(cuda_mem_torch_end_allocate_to_pool(0, pool));
    let figures = cuda_mem_top::ask(std::process::id()).unwrap();
    let parts = figures.devices.iter().flat_map(|device| &device.parts);
    let found: Vec<_> = parts.filter(|part| part.pool == Some((pool.first, pool.second))).collect();
    assert!(found.len() == 1 && found[0].live == 5 * MIB as u64, "{found:?}");
    delete(of_pool);
    succeed(cuda_mem_torch_release_pool(0, pool));

    delete(block);
    let figures = cuda_mem_top::ask(std::process::id()).unwrap();
    let parts = figures.devices.iter().flat_map(|device| &device.parts);
    let left: u64 = parts.filter(|part| part.stream == stream.addr() as u64).map(|part| part.live).sum();
    assert_eq!(left, 0, "it is asked anew");
}

#[test]
fn memory_of_a_tag_has_its_name_and_asleep_it_is_not_reserved() {
    let _turn = turn();
    let (stream, tag) = (new_stream().as_raw(), c"shown weights");
    let part = || {
        let figures = cuda_mem_top::ask(std::process::id()).unwrap();
        let mut parts = figures.devices.into_iter().flat_map(|device| device.parts);
        parts.find(|part| part.tag.as_deref() == tag.to_str().ok()).unwrap()
    };
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_enter_tag(0, tag.as_ptr()) });
    let block = allocate(30 * MIB, stream);
    // SAFETY: text.
    succeed(unsafe { cuda_mem_torch_leave_tag(0, tag.as_ptr()) });
    let awake = part();
    assert_eq!((awake.stream, awake.live), (stream.addr() as u64, 30 * MIB as u64));
    assert!(awake.pool.is_some() && awake.reserved >= awake.live, "{awake:?}");
    let names = [tag.as_ptr()];
    // SAFETY: one text; nothing uses what sleeps.
    succeed(unsafe {
        cuda_mem_torch_sleep(0, names.as_ptr(), 1, CUDA_MEM_TORCH_BACKUP_PINNED, null_mut(), null())
    });
    let asleep = part();
    assert_eq!((asleep.reserved, asleep.live), (0, 30 * MIB as u64));
    // SAFETY: one text.
    succeed(unsafe { cuda_mem_torch_wake(0, names.as_ptr(), 1, CUDA_MEM_TORCH_RESTORE_BACKUP, null()) });
    assert_eq!(part(), awake);
    delete(block);
}

#[test]
fn the_table_has_this_process_where_there_is_no_gpu() {
    unsafe extern "C" fn keep(data: *mut c_void, text: *const c_char) {
        // SAFETY: the library's text.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        // SAFETY: what is passed below.
        unsafe { &mut *data.cast::<String>() }.push_str(text);
    }
    let _turn = turn();
    let block = allocate(3 * MIB, new_stream().as_raw());
    let mut table = String::new();
    // SAFETY: a function that may be called with it.
    succeed(unsafe { cuda_mem_torch_top_table((&raw mut table).cast(), Some(keep)) });
    let own = std::process::id().to_string();
    assert!(table.lines().any(|line| line.split_whitespace().next() == Some(&own)), "{table}");
    // SAFETY: no function.
    let code = unsafe { cuda_mem_torch_top_table(null_mut(), None) };
    assert_eq!((code, message().as_str()), (CUDA_MEM_TORCH_INVALID_ARGUMENT, "write is null"));
    delete(block);
}
