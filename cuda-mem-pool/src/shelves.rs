//! A list that only grows, so that a thread looks a value up, or walks over all, without a lock.

use std::sync::OnceLock;

/// Values by number, from 0 on. What was added stays where it is.
#[derive(Debug)]
pub(crate) struct Shelves<T> {
    /// Hardly any program has more.
    first: [Place<T>; FIRST],
    further: [OnceLock<Box<[Place<T>]>>; SHELVES],
}

type Place<T> = OnceLock<Box<T>>;

const FIRST: usize = 16;
const SHELVES: usize = 19;

/// How many values there may be.
pub(crate) const MOST: u32 = ((FIRST << (SHELVES + 1)) - FIRST) as u32;

impl<T> Default for Shelves<T> {
    fn default() -> Self {
        Self { first: [const { OnceLock::new() }; FIRST], further: [const { OnceLock::new() }; SHELVES] }
    }
}

impl<T> Shelves<T> {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let place = match self.first.get(number as usize) {
            Some(place) => place,
            None => self.further(number)?,
        };
        place.get().map(|value| &**value)
    }

    fn further(&self, number: u32) -> Option<&Place<T>> {
        let (shelf, place) = place_of(number);
        self.further.get(shelf)?.get()?.get(place)
    }

    /// Adds the value of the next number. None if that has one, or there are no more.
    pub(crate) fn add(&self, number: u32, value: T) -> Option<&T> {
        let place = match self.first.get(number as usize) {
            Some(place) => place,
            None => {
                let (shelf, place) = place_of(number);
                let places = || (0..FIRST << (shelf + 1)).map(|_| OnceLock::new()).collect();
                self.further.get(shelf)?.get_or_init(places).get(place)?
            }
        };
        place.set(Box::new(value)).ok()?;
        self.get(number)
    }

    /// All values in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let shelves = self.further.iter().map_while(OnceLock::get);
        let further = shelves.flat_map(|shelf| shelf.iter());
        self.first.iter().chain(further).map_while(OnceLock::get).map(|value| &**value)
    }
}

/// The shelf of a number from [`FIRST`] on, and its place there.
const fn place_of(number: u32) -> (usize, usize) {
    let place = number as usize + FIRST;
    let shelf = (place / FIRST).ilog2() as usize;
    (shelf - 1, place - (FIRST << shelf))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in FIRST as u32..10_000 {
            assert_eq!(place_of(number), next);
            next = if next.1 + 1 == FIRST << (next.0 + 1) { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert_eq!(place_of(MOST - 1).0, SHELVES - 1);
    }
}
