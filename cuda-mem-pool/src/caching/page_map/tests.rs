use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

/// Addresses as drivers give them, and the ends of all addresses.
const BASES: [u64; 5] = [0, 0x7f12_0000_0000, 0x7f12_4000_0000, 0x1_0000_0000_0000, !(SLOT - 1)];

#[derive(Clone, Debug)]
enum Step {
    SetLarge { address: u64, owner: u32, record: u32 },
    ClearLarge(u64),
    AddPage { address: u64, owner: u32, kind: Tier },
    RemovePage(u64),
    SetInPage { address: u64, record: u32 },
    Clear(u64),
}

/// Few slots and places, so that steps meet.
fn address() -> impl Strategy<Value = u64> {
    let offset = prop_oneof![
        4 => (0u64..4).prop_map(|granule| granule * GRANULE),
        4 => (0u64..8).prop_map(|window| window * WINDOW + 512),
        2 => (0u64..4).prop_map(|half| half * (SLOT / 2)),
        2 => (0..SLOT / GRANULE).prop_map(|granule| granule * GRANULE),
        1 => 0..SLOT,
    ];
    (prop::sample::select(&BASES[..]), 0u64..3, offset)
        .prop_map(|(base, slot, offset)| base.saturating_add(slot * SLOT).saturating_add(offset))
}

fn page() -> impl Strategy<Value = u64> {
    address().prop_map(|address| address / SLOT * SLOT)
}

fn step() -> impl Strategy<Value = Step> {
    let record = prop_oneof![0u32..50, Just(RECORDS - 1), Just(RECORDS)];
    let kind = prop_oneof![Just(Tier::Small), Just(Tier::Medium)];
    prop_oneof![
        2 => (address(), 0u32..4, any::<u32>())
            .prop_map(|(address, owner, record)| Step::SetLarge { address, owner, record }),
        2 => address().prop_map(Step::ClearLarge),
        2 => (page(), 0u32..4, kind).prop_map(|(address, owner, kind)| Step::AddPage { address, owner, kind }),
        1 => page().prop_map(Step::RemovePage),
        12 => (address(), record).prop_map(|(address, record)| Step::SetInPage { address, record }),
        4 => address().prop_map(Step::Clear),
    ]
}

/// The plain thing: what starts where.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u64, Found>,
    pages: BTreeMap<u64, (u32, Tier)>,
}

impl Model {
    fn apply(&mut self, step: &Step, map: &PageMap) -> Result<(), TestCaseError> {
        match *step {
            Step::SetLarge { address, owner, record } => {
                let fits = address.is_multiple_of(GRANULE) && !self.pages.contains_key(&slot(address));
                prop_assert_eq!(map.set_large(address, owner, record).is_some(), fits);
                if fits {
                    self.replace_in(address, SLOT / 2, Found { owner, record, tier: Tier::Large });
                    // One heap has the slot.
                    for (_, found) in self.blocks.range_mut(slot(address)..=slot(address) + (SLOT - 1)) {
                        found.owner = owner;
                    }
                }
            }
            Step::ClearLarge(address) => {
                map.clear_large(address);
                if !self.pages.contains_key(&slot(address)) {
                    self.blocks.remove(&address);
                }
            }
            Step::AddPage { address, owner, kind } => {
                let mut inside = self.blocks.range(address..=address + (SLOT - 1));
                let fits = inside.next().is_none() && !self.pages.contains_key(&address);
                prop_assert_eq!(map.add_page(address, owner, kind).is_some(), fits);
                if fits {
                    self.pages.insert(address, (owner, kind));
                }
            }
            Step::RemovePage(address) => {
                map.remove_page(address);
                if self.pages.remove(&address).is_some() {
                    self.blocks.retain(|block, _| slot(*block) != address);
                }
            }
            Step::SetInPage { address, record } => {
                let page = self.pages.get(&slot(address)).copied();
                let page = page.filter(|_| address.is_multiple_of(GRANULE) && record < RECORDS);
                prop_assert_eq!(map.set_in_page(address, record).is_some(), page.is_some());
                if let Some((owner, tier)) = page {
                    let part = if tier == Tier::Small { GRANULE } else { WINDOW };
                    self.replace_in(address, part, Found { owner, record, tier });
                }
            }
            Step::Clear(address) => {
                map.clear(address);
                if self.pages.contains_key(&slot(address)) {
                    self.blocks.remove(&address);
                }
            }
        }
        Ok(())
    }

    fn replace_in(&mut self, address: u64, part: u64, found: Found) {
        self.blocks.retain(|block, _| block / part != address / part);
        self.blocks.insert(address, found);
    }
}

fn slot(address: u64) -> u64 {
    address / SLOT * SLOT
}

proptest! {
    #[test]
    fn the_map_is_the_plain_one(
        steps in prop::collection::vec(step(), 1..200),
        asked in prop::collection::vec(address(), 20),
    ) {
        let (map, mut model) = (PageMap::new(), Model::default());
        for step in &steps {
            model.apply(step, &map)?;
        }
        for (address, found) in &model.blocks {
            prop_assert_eq!(map.find(*address), Some(*found), "at {:#x}", address);
        }
        for address in asked {
            prop_assert_eq!(map.find(address), model.blocks.get(&address).copied(), "at {:#x}", address);
        }
    }

    /// As many regions as there may be, in any order.
    #[test]
    fn regions_are_found_however_many_there_are(
        regions in prop::collection::btree_set(prop_oneof![0u64..3000, 0u64..1 << 34], 1..500),
    ) {
        let map = PageMap::new();
        for (record, region) in regions.iter().enumerate() {
            prop_assert_eq!(map.set_large(region << 30, 1, record as u32), Some(()));
        }
        for (record, region) in regions.iter().enumerate() {
            let found = Found { owner: 1, record: record as u32, tier: Tier::Large };
            prop_assert_eq!(map.find(region << 30), Some(found));
            let next = (region + 1) % (1 << 34);
            prop_assert_eq!(map.find(next << 30).is_some(), regions.contains(&next));
        }
    }
}

#[test]
fn leaves_are_used_again_and_empty() {
    let map = PageMap::new();
    for kind in [Tier::Small, Tier::Medium] {
        let mut bytes = 0;
        for round in 0..100 {
            let address = BASES[1] + round * SLOT;
            map.add_page(address, 0, kind).unwrap();
            assert_eq!(map.find(address), None);
            map.set_in_page(address, 5).unwrap();
            map.set_in_page(address + SLOT - GRANULE, 5).unwrap();
            assert!(map.find(address + SLOT - GRANULE).is_some());
            map.remove_page(address);
            assert_eq!(map.find(address), None);
            assert!(round == 0 || map.metadata_bytes() == bytes);
            bytes = map.metadata_bytes();
        }
    }
}

#[test]
fn metadata_stays_small() {
    const PAGES: u64 = 16 << 10;
    let map = PageMap::new();
    for page in 0..PAGES {
        map.add_page(BASES[1] + page * SLOT, 0, Tier::Medium).unwrap();
    }
    assert!((map.metadata_bytes() as u64) < PAGES * SLOT / 3000, "{}", map.metadata_bytes());
}

/// Heaps write to their slots, make regions and use leaves again, while others look up what they were handed.
#[test]
fn a_block_is_found_wherever_it_was_entered() {
    let map = PageMap::new();
    std::thread::scope(|scope| {
        let map = &map;
        for heap in 0..3u64 {
            let (hand, handed) = std::sync::mpsc::sync_channel::<(u64, Found)>(64);
            scope.spawn(move || {
                for round in 0..4000 {
                    // Every heap's slots lie between those of the others.
                    let slot = (round * 3 + heap) * SLOT;
                    let slot = if round % 5 == 0 { slot * 97 + (1 << 45) } else { slot };
                    let record = round as u32;
                    let owner = heap as u32;
                    let (address, tier) = if round % 2 == 0 {
                        map.set_large(slot + 512, owner, record).unwrap();
                        (slot + 512, Tier::Large)
                    } else {
                        map.add_page(slot, owner, Tier::Small).unwrap();
                        map.set_in_page(slot + 1024, record).unwrap();
                        (slot + 1024, Tier::Small)
                    };
                    hand.send((address, Found { owner, record, tier })).unwrap();
                    map.clear_large(address);
                }
            });
            scope.spawn(move || {
                for (address, found) in handed {
                    // Large ones may have been taken out meanwhile.
                    let answer = map.find(address);
                    assert!(
                        answer == Some(found) || (found.tier == Tier::Large && answer.is_none()),
                        "{answer:?}"
                    );
                }
            });
        }
    });
}
