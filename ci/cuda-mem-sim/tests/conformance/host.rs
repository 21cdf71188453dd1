//! Registered and pinned host memory.

use std::ptr;

use crate::Case;
use crate::questions::{Questions, as_host, ask, cu, pages};

const PAGE: usize = 4096;

pub(crate) const CASES: &[Case] = &[
    ("host memory: registrations", |m| Questions::answers(m, registrations)),
    ("host memory: pointers", |m| Questions::answers(m, pointers)),
    ("host memory: flags", |m| Questions::answers(m, flags)),
    ("host memory: allocations", |m| Questions::answers(m, allocations)),
];

fn registrations(q: &mut Questions) {
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let map = pages(16 * PAGE, write);
    let at = |offset: usize| map.wrapping_byte_add(offset);
    ask!(q, "page-aligned, touched", cuMemHostRegister(at(0), 4 * PAGE, 0));
    ask!(q, "the same range again", cuMemHostRegister(at(0), 4 * PAGE, 0));
    ask!(q, "overlap: second half and beyond", cuMemHostRegister(at(2 * PAGE), 4 * PAGE, 0));
    ask!(q, "overlap: inside", cuMemHostRegister(at(PAGE), PAGE, 0));
    ask!(q, "adjacent above", cuMemHostRegister(at(4 * PAGE), PAGE, 0));
    ask!(q, "overlap: superset", cuMemHostRegister(at(0), 6 * PAGE, 0));
    ask!(q, "bytes 100..200 of a free page", cuMemHostRegister(at(8 * PAGE + 100), 100, 0));
    ask!(q, "bytes 300..400 of that same page", cuMemHostRegister(at(8 * PAGE + 300), 100, 0));
    ask!(q, "bytes 150..250 of that same page (byte overlap)", cuMemHostRegister(at(8 * PAGE + 150), 100, 0));
    ask!(q, "bytes 100..200: its exact start", cuMemHostUnregister(at(8 * PAGE + 100)));
    ask!(q, "bytes 300..400: the start of the page", cuMemHostUnregister(at(8 * PAGE)));
    ask!(q, "bytes 300..400: its exact start", cuMemHostUnregister(at(8 * PAGE + 300)));
    ask!(q, "size 0", cuMemHostRegister(at(8 * PAGE), 0, 0));
    ask!(q, "null pointer", cuMemHostRegister(ptr::null_mut(), PAGE, 0));
    ask!(q, "null pointer, size 0", cuMemHostRegister(ptr::null_mut(), 0, 0));
    let none = pages(PAGE, libc::PROT_NONE);
    ask!(q, "PROT_NONE range", cuMemHostRegister(none, PAGE, 0));
    // SAFETY: the mapping made above, which nobody uses.
    unsafe { libc::munmap(none, PAGE) };
    ask!(q, "unmapped address", cuMemHostRegister(none, PAGE, 0));
    let constant = pages(PAGE, libc::PROT_READ);
    ask!(q, "read-only constant data, flags 0", cuMemHostRegister(constant, PAGE, 0));
    ask!(q, "address + 1, size 4096 (two pages)", cuMemHostRegister(at(9 * PAGE + 1), PAGE, 0));
    ask!(q, "size 4097 (not a multiple of the page)", cuMemHostRegister(at(12 * PAGE), PAGE + 1, 0));
    ask!(q, "size 1 << 60", cuMemHostRegister(at(14 * PAGE), 1 << 60, 0));
    ask!(q, "size wraps the address space", cuMemHostRegister(at(14 * PAGE), usize::MAX - 4095, 0));
    let (pinned, device) = (q.pinned(PAGE), q.alloc(PAGE));
    ask!(q, "memory of cuMemHostAlloc", cuMemHostRegister(pinned, PAGE, 0));
    ask!(q, "device pointer", cuMemHostRegister(as_host(device), PAGE, 0));
    ask!(q, "interior pointer", cuMemHostUnregister(at(PAGE)));
    ask!(q, "unknown pointer", cuMemHostUnregister(at(15 * PAGE)));
    ask!(q, "null", cuMemHostUnregister(ptr::null_mut()));
    ask!(q, "memory of cuMemHostAlloc", cuMemHostUnregister(pinned));
    ask!(q, "device pointer", cuMemHostUnregister(as_host(device)));
    ask!(q, "registered memory", cuMemFreeHost(at(0)));
    ask!(q, "valid", cuMemHostUnregister(at(0)));
    ask!(q, "twice", cuMemHostUnregister(at(0)));
    let gone = pages(PAGE, write);
    q.expect(cu!(q, cuMemHostRegister(gone, PAGE, 0)));
    // SAFETY: as above.
    unsafe { libc::munmap(gone, PAGE) };
    ask!(q, "after munmap of the range", cuMemHostUnregister(gone));
    let hole = pages(3 * PAGE, write);
    // SAFETY: the middle page of a mapping that nobody uses.
    unsafe { libc::munmap(hole.wrapping_byte_add(PAGE), PAGE) };
    ask!(q, "range with a hole in the middle", cuMemHostRegister(hole, 3 * PAGE, 0));
}

fn pointers(q: &mut Questions) {
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let map = pages(4 * PAGE, write);
    let at = |offset: usize| map.wrapping_byte_add(offset);
    q.expect(cu!(q, cuMemHostRegister(at(1), PAGE, 0)));
    let mut device = 0;
    ask!(
        q,
        "start of the page that a registration at +1 touches",
        cuMemHostGetDevicePointer(&mut device, at(0), 0)
    );
    ask!(q, "interior of a registration", cuMemHostGetDevicePointer(&mut device, at(100), 0));
    assert_eq!(device, at(100).addr() as u64);
    ask!(q, "registered, flags argument 1", cuMemHostGetDevicePointer(&mut device, at(100), 1));
    ask!(q, "one past the end of a registration", cuMemHostGetDevicePointer(&mut device, at(1 + PAGE), 0));
    ask!(q, "pageable", cuMemHostGetDevicePointer(&mut device, at(3 * PAGE), 0));
    ask!(q, "null", cuMemHostGetDevicePointer(&mut device, ptr::null_mut(), 0));
    let memory = q.alloc(PAGE);
    ask!(q, "device pointer", cuMemHostGetDevicePointer(&mut device, as_host(memory), 0));
    let mut flags = 0;
    ask!(q, "registered with flags 0", cuMemHostGetFlags(&mut flags, at(1)));
    assert_eq!(flags, 2);
    ask!(q, "interior of a registration", cuMemHostGetFlags(&mut flags, at(100)));
    ask!(q, "pageable", cuMemHostGetFlags(&mut flags, at(3 * PAGE)));
    ask!(q, "null", cuMemHostGetFlags(&mut flags, ptr::null_mut()));
    ask!(q, "device pointer", cuMemHostGetFlags(&mut flags, as_host(memory)));
}

fn flags(q: &mut Questions) {
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let map = pages(PAGE, write);
    for (flags, told) in
        [(1, 3), (2, 2), (3, 3), (4, 0), (8, 2), (0x10, 0), (0x20, 0), (0x80, 0), (0x8000_0000, 0)]
    {
        ask!(q, &format!("flags {flags:#x}, plain memory"), cuMemHostRegister(map, PAGE, flags));
        if told != 0 {
            let mut found = 0;
            q.expect(cu!(q, cuMemHostGetFlags(&mut found, map)));
            assert_eq!(found, told);
            q.expect(cu!(q, cuMemHostUnregister(map)));
        }
    }
}

fn allocations(q: &mut Questions) {
    let mut at = ptr::without_provenance_mut(7);
    ask!(q, "size 0", cuMemHostAlloc(&mut at, 0, 0));
    assert!(at.is_null());
    ask!(q, "null result pointer", cuMemHostAlloc(ptr::null_mut(), 1, 0));
    ask!(q, "flags 8", cuMemHostAlloc(&mut at, 1, 8));
    ask!(q, "flags 0x10", cuMemHostAlloc(&mut at, 1, 0x10));
    ask!(q, "size 1 << 60", cuMemHostAlloc(&mut at, 1 << 60, 0));
    ask!(q, "size 1", cuMemHostAlloc(&mut at, 1, 0));
    let mut flags = 0;
    ask!(q, "cuMemHostAlloc with flags 0", cuMemHostGetFlags(&mut flags, at));
    assert_eq!(flags, 2);
    let mut all = ptr::null_mut();
    q.expect(cu!(q, cuMemHostAlloc(&mut all, 1, 7)));
    ask!(q, "cuMemHostAlloc with flags 7", cuMemHostGetFlags(&mut flags, all));
    assert_eq!(flags, 7);
    let two_pages = q.pinned(2 * PAGE);
    let device = q.alloc(PAGE);
    ask!(q, "null", cuMemFreeHost(ptr::null_mut()));
    ask!(q, "unknown pointer", cuMemFreeHost(ptr::without_provenance_mut(0x1000)));
    ask!(q, "interior pointer", cuMemFreeHost(two_pages.wrapping_byte_add(PAGE)));
    ask!(q, "device pointer", cuMemFreeHost(as_host(device)));
    ask!(q, "valid", cuMemFreeHost(two_pages));
    ask!(q, "twice", cuMemFreeHost(two_pages));
}
