//! What does not fit: sizes, places, and more than there is.

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::vmm::{self, Access, AddressRange, CreateOptions, PhysicalMemory};
use cuda_mem_core::{Error, Result};

use super::{LEN, Pages, read, write};
use crate::common::outcome::record;
use crate::common::{World, pattern};

#[test]
fn sizes_and_offsets_that_are_no_whole_pages_are_errors() {
    let world = World::new();
    let Pages { device, page, range } = Pages::new(&world);
    let options = CreateOptions::supported_by(device).unwrap();
    let memory = PhysicalMemory::create(device, page, &options).unwrap();
    let expect = |step: &str, result: Result<()>, expected: (&str, usize)| {
        record!(step, &result);
        match result {
            Err(Error::NotGranular { what, value, granularity }) => {
                assert_eq!(((what, value), granularity), (expected, page), "{step}");
            }
            other => panic!("{step}: {other:?}"),
        }
    };
    for size in [0, 1, page - 1, page + 4096, usize::MAX] {
        let reserved = AddressRange::reserve(device, size, 0).map(drop);
        expect(&format!("reserve {size}"), reserved, ("the size", size));
        let created = PhysicalMemory::create(device, size, &options).map(drop);
        expect(&format!("create {size}"), created, ("the size", size));
        let allowed = range.set_access(0, size, &[device], Access::Read);
        expect(&format!("access {size}"), allowed, ("the size", size));
        // SAFETY: nothing is mapped that could be in use.
        expect(&format!("unmap {size}"), unsafe { range.unmap(0, size) }, ("the size", size));
    }
    for offset in [1, page / 2, page + 4096, usize::MAX] {
        expect(&format!("map {offset}"), range.map(offset, &memory), ("the offset", offset));
        let allowed = range.set_access(offset, page, &[device], Access::Read);
        expect(&format!("access at {offset}"), allowed, ("the offset", offset));
        // SAFETY: as above.
        expect(&format!("unmap at {offset}"), unsafe { range.unmap(offset, page) }, ("the offset", offset));
    }
    for alignment in [3, 3 * page, usize::MAX] {
        let reserved = AddressRange::reserve(device, page, alignment).map(drop);
        record!(&format!("alignment {alignment}"), &reserved);
        assert!(matches!(reserved, Err(Error::NotAPowerOfTwo { value, .. }) if value == alignment));
    }
}

#[test]
fn nothing_is_mapped_beyond_the_addresses_or_over_something_else() {
    let world = World::new();
    let pages = Pages::new(&world);
    let (one, two) = (pages.create(1), pages.create(2));
    let (page, last) = (pages.page, usize::MAX / pages.page * pages.page);
    for offset in [7 * page, 8 * page, 1 << 46, last] {
        let mapped = pages.range.map(offset, &two);
        record!(&format!("map at {offset}"), &mapped);
        let end = offset.saturating_add(2 * page);
        assert!(
            matches!(&mapped, Err(Error::OutOfRange { range, len }) if *range == (offset..end) && *len == 8 * page),
            "{mapped:?}"
        );
    }
    let allowed = pages.allow(0, 9, Access::Read);
    assert!(matches!(allowed, Err(Error::OutOfRange { .. })), "{allowed:?}");
    pages.range.map(page, &two).unwrap();
    let refused = [
        ("map over a mapping", pages.range.map(page, &one)),
        ("map over its second half", pages.range.map(2 * page, &two)),
        ("access to nothing", pages.allow(5, 1, Access::Read)),
        ("access to a mapping and nothing", pages.allow(1, 3, Access::Read)),
        // SAFETY: nothing uses it; the driver refuses.
        ("unmap half of a mapping", unsafe { pages.range.unmap(page, page) }),
    ];
    for (step, result) in refused {
        record!(step, &result);
        assert_eq!(result.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_VALUE), "{step}");
    }
    assert_eq!(pages.range.mapped_bytes(), 2 * page);
    // SAFETY: nothing uses it.
    unsafe { pages.unmap(1, 2) };
}

#[test]
fn more_than_there_is_is_out_of_memory() {
    let world = World::new();
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let more = device.total_memory().unwrap().next_multiple_of(page) + page;
    for bytes in [more, 1 << 60] {
        let error = PhysicalMemory::create(device, bytes, &CreateOptions::default()).unwrap_err();
        let Error::Driver(error) = error else { panic!("{error:?}") };
        assert_eq!((error.code(), error.bytes()), (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Some(bytes)));
    }
    let reserved = AddressRange::reserve(device, 1 << 47, 0);
    record!("1 << 47 addresses", &reserved);
    assert_eq!(reserved.unwrap_err().code(), Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
}

#[test]
fn addresses_are_many_and_aligned() {
    let world = World::new();
    let device = world.context.device();
    let page = vmm::granularity(device).unwrap();
    let range = AddressRange::reserve(device, 1 << 44, 1 << 30).unwrap();
    assert_eq!((range.bytes(), range.address() % (1 << 30)), (1 << 44, 0));
    let memory = PhysicalMemory::create(device, page, &CreateOptions::default()).unwrap();
    let offset = (1 << 44) - page;
    range.map(offset, &memory).unwrap();
    range.set_access(offset, page, &[device], Access::ReadWrite).unwrap();
    let address = range.address() + offset as u64;
    write(&world.stream, address, &pattern(LEN, 2)).unwrap();
    assert_eq!(read(&world.stream, address, LEN).unwrap(), pattern(LEN, 2));
    // SAFETY: the stream was waited for.
    unsafe { range.unmap(offset, page) }.unwrap();
    range.close().unwrap();
}

#[test]
fn a_range_with_memory_is_not_given_back() {
    let world = World::new();
    let pages = Pages::new(&world);
    let memory = pages.create(1);
    pages.map(2, &memory);
    let refused = pages.range.close().unwrap_err();
    record!("close", &refused.error);
    assert!(matches!(refused.error, Error::StillMapped { bytes } if bytes == pages.page), "{refused:?}");
    let range = refused.owner;
    // SAFETY: nothing uses it.
    unsafe { range.unmap(2 * pages.page, pages.page) }.unwrap();
    range.close().unwrap();
}
