//! Memory mapped for registration: its length, its pages, its NUMA node.

use cuda_mem_core::host::{
    HostMapping, HostMemory, MappingOptions, Pages, RegisterOptions, Registered, numa,
};
use cuda_mem_core::{DeviceBuffer, Error};

use crate::common::{World, pattern};

fn huge_page_sizes() -> Vec<usize> {
    match HostMapping::new(0, &MappingOptions::new().pages(Pages::HugeTlb { size: 12345 })) {
        Err(Error::NoSuchPageSize { size: 12345, sizes }) => sizes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_is_zeroed_has_the_exact_length_and_costs_no_more() {
    for pages in [Pages::Default, Pages::Transparent] {
        // Not a whole number of pages, nor of huge ones.
        let len = (6 << 20) + 12345;
        let world = World::new();
        let options = MappingOptions::new().pages(pages);
        let memory = HostMapping::new(len, &options).unwrap();
        assert_eq!((memory.byte_len(), memory.as_slice().len()), (len, len));
        assert_eq!(memory.residency().unwrap().resident, 0, "nothing was touched yet");
        let mut registered =
            Registered::with_options(&world.context, memory, &RegisterOptions::new()).unwrap();
        assert!(registered.as_slice().unwrap() == vec![0; len]);
        registered.as_mut_slice().unwrap().copy_from_slice(&pattern(len, 1));
        let device = DeviceBuffer::from_slice(&world.stream, registered.as_slice().unwrap()).unwrap();
        assert!(device.to_vec(&world.stream).unwrap() == pattern(len, 1));

        let report = registered.memory().unwrap().residency().unwrap();
        assert!(report.resident >= len, "{report:?}");
        assert!(report.resident <= len + len / 1000, "{report:?}");
        assert_eq!(report.resident, report.mapped);
        assert!(report.huge <= report.resident, "{report:?}");
        let memory = registered.close().unwrap();
        assert_eq!(memory.residency().unwrap().resident, report.resident, "unregistering keeps the pages");
    }
}

#[test]
fn transparent_pages_start_where_huge_ones_can_and_the_report_tells_what_became_of_them() {
    let options = MappingOptions::new().pages(Pages::Transparent);
    let mut memory = HostMapping::new(9 << 20, &options).unwrap();
    assert!(memory.as_ptr().addr().is_multiple_of(2 << 20));
    memory.as_mut_slice().fill(1);
    let report = memory.residency().unwrap();
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !setting.contains("[madvise]") && !setting.contains("[always]") {
        assert_eq!(report.huge, 0);
    }
    // Four huge pages fit whole; a system that has none in one piece gives fewer.
    assert!(report.huge <= 8 << 20 && report.huge.is_multiple_of(2 << 20), "{report:?}");
}

#[test]
fn pages_of_a_reserve_are_had_whole_or_refused() {
    for size in huge_page_sizes() {
        let options = MappingOptions::new().pages(Pages::HugeTlb { size });
        let error = HostMapping::new(size + 1, &options).unwrap_err();
        let expected = (size + 1, size);
        assert!(matches!(&error, Error::NotWholePages { len, page_size } if (*len, *page_size) == expected));
        assert!(error.to_string().contains(&size.to_string()), "{error}");
        if size > 2 << 20 {
            continue;
        }
        match HostMapping::new(size, &options) {
            Ok(mut memory) => {
                assert!(memory.as_ptr().addr().is_multiple_of(size));
                memory.as_mut_slice().fill(1);
                let report = memory.residency().unwrap();
                assert_eq!((report.resident, report.huge), (size, size));
                let world = World::new();
                let registered =
                    Registered::with_options(&world.context, memory, &RegisterOptions::new()).unwrap();
                assert_eq!(registered.close().unwrap().as_slice()[size - 1], 1);
            }
            // The reserve is empty.
            Err(Error::Io { call: "mmap(MAP_HUGETLB)", source }) => {
                assert_eq!(source.raw_os_error(), Some(libc::ENOMEM));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let none =
        HostMapping::new(4096, &MappingOptions::new().pages(Pages::HugeTlb { size: 4096 })).unwrap_err();
    assert!(matches!(none, Error::NoSuchPageSize { size: 4096, .. }), "{none}");
}

#[test]
fn pages_come_from_the_node_that_was_asked_for() {
    let nodes = numa::nodes().unwrap();
    assert!(nodes.is_sorted() && !nodes.is_empty());
    for &node in &nodes {
        for pages in [Pages::Default, Pages::Transparent] {
            let options = MappingOptions::new().pages(pages).numa_node(node);
            let mut memory = match HostMapping::new(5 << 20, &options) {
                Ok(memory) => memory,
                // Containers may forbid it, and a node may have no memory.
                Err(Error::Io { call: "mbind", .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            memory.as_mut_slice().fill(1);
            let Some(report) = memory.residency().unwrap().nodes else { continue };
            assert!(report.complete, "{report:?}");
            assert_eq!(report.pages, [(node, report.asked)]);
        }
    }
}

#[test]
fn a_node_that_does_not_exist_is_an_error_that_lists_the_nodes() {
    let error = HostMapping::new(4096, &MappingOptions::new().numa_node(77_777)).unwrap_err();
    assert!(
        matches!(&error, Error::NoSuchNumaNode { node: 77_777, nodes } if *nodes == numa::nodes().unwrap())
    );
    assert!(error.to_string().contains("77777"), "{error}");
}

#[test]
fn a_large_mapping_is_sampled() {
    let mut memory = HostMapping::new(64 << 20, &MappingOptions::new()).unwrap();
    memory.as_mut_slice()[..4096].fill(1);
    let Some(report) = memory.residency().unwrap().nodes else { return };
    assert!(!report.complete && report.asked <= 4096, "{report:?}");
    assert_eq!(report.pages.iter().map(|&(_, pages)| pages).sum::<usize>(), 1, "the first page is looked at");
}

#[test]
fn nothing_and_too_much() {
    let world = World::new();
    let empty = HostMapping::new(0, &MappingOptions::new()).unwrap();
    assert_eq!((empty.byte_len(), empty.as_slice().len()), (0, 0));
    assert_eq!(empty.residency().unwrap().mapped, 0);
    let mut registered = Registered::with_options(&world.context, empty, &RegisterOptions::new()).unwrap();
    assert!(registered.as_slice().unwrap().is_empty() && registered.as_mut_slice().unwrap().is_empty());
    assert_eq!(registered.close().unwrap().byte_len(), 0);
    let error = HostMapping::new(usize::MAX, &MappingOptions::new()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    for pages in [Pages::Default, Pages::Transparent] {
        let error = HostMapping::new(isize::MAX as usize, &MappingOptions::new().pages(pages)).unwrap_err();
        assert!(matches!(error, Error::Io { call: "mmap", .. }), "{error}");
    }
}
