use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// Behind the last entry.
const END: usize = ENTRIES + RING_ENTRIES as usize * LINE;

/// Words by their places, in the order in which they were touched.
type Words = Vec<(usize, u64)>;

/// Memory of which each look finds something else, as the other side would have it. Nothing is replaced there in time.
#[derive(Debug, Default)]
struct Memory {
    answers: RefCell<Vec<u64>>,
    found: RefCell<Words>,
    written: RefCell<Words>,
    touched: Cell<usize>,
}

impl Memory {
    fn touch(&self, cell: usize) {
        assert!(cell < END, "outside of the ring");
        self.touched.set(self.touched.get() + 1);
        assert!(self.touched.get() <= 100, "without an end");
    }

    /// What was found and what was written since this was asked last.
    fn told(&self) -> (Words, Words) {
        self.touched.set(0);
        (self.found.take(), self.written.take())
    }
}

impl Cells for Rc<Memory> {
    fn load(&self, cell: usize, _: Ordering) -> u64 {
        self.touch(cell);
        let value = self.answers.borrow_mut().pop().unwrap_or_default();
        self.found.borrow_mut().push((cell, value));
        value
    }

    fn store(&self, cell: usize, value: u64, _: Ordering) {
        self.touch(cell);
        self.written.borrow_mut().push((cell, value));
    }

    fn replace(&self, cell: usize, _: u64, _: u64) -> bool {
        self.touch(cell);
        false
    }

    fn fence(&self) {}

    fn rung(&self) -> u32 {
        0
    }

    fn ring(&self) {}
}

/// Where an end is, and what it finds: often numbers that might be.
fn looks() -> impl Strategy<Value = (u64, Vec<u64>)> {
    let place = prop_oneof![0..300u64, any::<u64>(), (0..300u64).prop_map(|back| u64::MAX - back)];
    place.prop_flat_map(|place| {
        let near = (-200..200i64).prop_map(move |far| place.wrapping_add_signed(far));
        let answer = prop_oneof![4 => near, 1 => any::<u64>(), 1 => Just(0)];
        (Just(place), prop::collection::vec(answer, 0..100))
    })
}

fn memory(answers: Vec<u64>) -> Rc<Memory> {
    Rc::new(Memory { answers: RefCell::new(answers), ..Memory::default() })
}

proptest! {
    /// It reads an entry once, where its own count says, and takes no more of them than there can be.
    #[test]
    fn a_reader_goes_by_its_own_count((next, answers) in looks()) {
        let memory = memory(answers);
        let mut consumer = Consumer { cells: Rc::clone(&memory), entries: RING_ENTRIES, next };
        for number in (0..10).map(|taken| next.wrapping_add(taken)) {
            prop_assert_eq!(consumer.position(), number);
            let peeked = consumer.peek();
            let (found, written) = memory.told();
            prop_assert_eq!(written, []);
            let there = found[0].1.wrapping_sub(number);
            prop_assert_eq!(found[0].0, TAIL);
            let first = ENTRIES + LINE * usize::try_from(number % RING_ENTRIES).unwrap();
            match peeked {
                Err(Corrupt) => prop_assert!(there > RING_ENTRIES),
                Ok(None) => prop_assert_eq!(there, 0),
                Ok(Some(entry)) => {
                    prop_assert!((1..=RING_ENTRIES).contains(&there));
                    let read = found[1..].to_vec();
                    prop_assert_eq!((first..).zip(entry).collect::<Vec<_>>(), read);
                }
            }
            consumer.advance();
            prop_assert_eq!(memory.told().1, [(HEAD, number.wrapping_add(1))]);
        }
    }

    /// It writes an entry where its own count says, and only where the other side says that it has read the one before.
    #[test]
    fn a_writer_goes_by_its_own_count((next, answers) in looks(), taken in 0..=RING_ENTRIES) {
        let memory = memory(answers);
        let taken = next.wrapping_sub(taken);
        let mut producer =
            Producer { cells: Rc::clone(&memory), entries: RING_ENTRIES, next, reserved: 0, taken };
        for _ in 0..2 * RING_ENTRIES {
            let number = producer.next;
            let had_room = producer.has_room();
            let first = ENTRIES + LINE * usize::try_from(number % RING_ENTRIES).unwrap();
            let reserved = producer.reserve();
            let (found, written) = memory.told();
            let said = found.iter().find(|(cell, _)| *cell == HEAD).map(|(_, value)| *value);
            prop_assert_eq!(said.is_some(), !had_room);
            let out = number.wrapping_sub(said.unwrap_or(producer.taken));
            match reserved {
                Err(Corrupt) => prop_assert!(out > RING_ENTRIES && written.is_empty()),
                Ok(false) => prop_assert!(out == RING_ENTRIES && written.is_empty()),
                Ok(true) => {
                    prop_assert!(out < RING_ENTRIES);
                    prop_assert_eq!(written, [(first, 0)]);
                    producer.push(entry(7));
                    let tail = (TAIL, number.wrapping_add(1));
                    let expected = (first..).zip(entry(7)).chain([tail]).collect::<Vec<_>>();
                    prop_assert_eq!(memory.told().1, expected);
                }
            }
        }
    }

    /// What both say of sleep ends, whatever the other makes of it.
    #[test]
    fn nobody_is_kept_busy((number, answers) in looks()) {
        let memory = memory(answers);
        let _ = claim(&memory);
        let _ = memory.told();
        let may_sleep = prepare_sleep(&memory, number).is_some();
        let looked = memory.told().0;
        let tails = looked.iter().filter(|(cell, _)| *cell == TAIL).map(|(_, tail)| *tail == number);
        prop_assert!(tails.eq([may_sleep]));
    }
}
