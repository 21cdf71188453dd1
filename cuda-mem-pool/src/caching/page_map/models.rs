use loom::sync::Arc;
use loom::thread;

use super::*;

/// A reader is handed an address while neighbours in the slot come and go and regions are added, so many that the table
/// grows.
#[test]
fn a_reader_sees_what_was_entered_for_what_it_was_handed() {
    loom::model(|| {
        let map = Arc::new(PageMap::new());
        let handed = Arc::new(AtomicU32::new(0));
        let heap = thread::spawn({
            let (map, handed) = (Arc::clone(&map), Arc::clone(&handed));
            move || {
                map.set_large(SLOT / 2 + 512, 1, 10).unwrap();
                map.set_large(512, 1, 11).unwrap();
                handed.store(1, Ordering::Release);
                // The neighbour.
                map.clear_large(SLOT / 2 + 512);
                map.set_large(SLOT / 2 + 1024, 1, 12).unwrap();
            }
        });
        let other_heap = thread::spawn({
            let map = Arc::clone(&map);
            move || {
                for region in 1..4 {
                    map.set_large(region * 2 * SLOT, 2, region as u32).unwrap();
                }
                map.find(2 * SLOT)
            }
        });
        if handed.load(Ordering::Acquire) == 1 {
            assert_eq!(map.find(512), Some(Found { owner: 1, record: 11, tier: Tier::Large }));
        }
        heap.join().unwrap();
        assert_eq!(other_heap.join().unwrap(), Some(Found { owner: 2, record: 1, tier: Tier::Large }));
        assert_eq!(map.find(SLOT / 2 + 1024), Some(Found { owner: 1, record: 12, tier: Tier::Large }));
        assert_eq!(map.find(4 * SLOT), Some(Found { owner: 2, record: 2, tier: Tier::Large }));
    });
}

/// A page is taken apart and its leaf goes to another heap's page, whose blocks are found and the old ones not.
#[test]
fn a_leaf_that_changes_hands_says_what_was_entered_last() {
    loom::model(|| {
        let map = Arc::new(PageMap::new());
        map.add_page(0, 1, Tier::Medium).unwrap();
        map.set_in_page(512, 1).unwrap();
        map.set_in_page(3 * WINDOW, 4).unwrap();
        let handed = Arc::new(AtomicU32::new(0));
        let first = thread::spawn({
            let map = Arc::clone(&map);
            move || map.remove_page(0)
        });
        let second = thread::spawn({
            let (map, handed) = (Arc::clone(&map), Arc::clone(&handed));
            move || {
                map.add_page(SLOT, 2, Tier::Medium).unwrap();
                map.set_in_page(SLOT + 512, 2).unwrap();
                handed.store(1, Ordering::Release);
                map.set_in_page(SLOT + WINDOW, 3).unwrap();
            }
        });
        if handed.load(Ordering::Acquire) == 1 {
            assert_eq!(map.find(SLOT + 512), Some(Found { owner: 2, record: 2, tier: Tier::Medium }));
        }
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(map.find(512), None);
        assert_eq!(map.find(SLOT + 3 * WINDOW), None, "left by the first");
        assert_eq!(map.find(SLOT + 512), Some(Found { owner: 2, record: 2, tier: Tier::Medium }));
    });
}
