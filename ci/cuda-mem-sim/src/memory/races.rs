//! Uses of the same physical bytes that nothing orders, whatever addresses they go through.
//!
//! A block's own history cannot see them: memory that is mapped in two places has two blocks.

use std::ops::Range;

use super::misuse::Act;

/// How many uses of one handle are remembered; beyond that the oldest are forgotten.
const REMEMBERED: usize = 2048;

/// What is no longer than this may be a flag that several streams write and wait for.
const WORD: u64 = 8;

/// The latest uses of a handle's bytes.
#[derive(Debug, Default)]
pub(crate) struct Races {
    uses: Vec<Use>,
}

#[derive(Debug, Clone)]
struct Use {
    /// Within the handle.
    bytes: Range<u64>,
    writes: bool,
    by: Act,
}

impl Races {
    /// Enters a use. The earlier one that it races with: one of the two writes, and nothing orders them.
    pub(crate) fn enter(&mut self, bytes: Range<u64>, writes: bool, by: &Act) -> Option<Act> {
        if bytes.end - bytes.start <= WORD {
            return None;
        }
        let mut race = None;
        let mut left = Vec::with_capacity(self.uses.len() + 2);
        for earlier in self.uses.drain(..) {
            let apart = earlier.bytes.end <= bytes.start || bytes.end <= earlier.bytes.start;
            let conflict = writes || earlier.writes;
            let ordered = apart || earlier.by.clock.happens_before(&by.clock);
            if !ordered && conflict {
                race.get_or_insert_with(|| earlier.by.clone());
            }
            if apart || !ordered || (earlier.writes && !writes) {
                left.push(earlier);
                continue;
            }
            // What comes after this use comes after that one too.
            let parts = [earlier.bytes.start..bytes.start, bytes.end..earlier.bytes.end];
            left.extend(
                parts
                    .into_iter()
                    .filter(|part| part.start < part.end)
                    .map(|bytes| Use { bytes, ..earlier.clone() }),
            );
        }
        left.push(Use { bytes, writes, by: by.clone() });
        let forgotten = left.len().saturating_sub(REMEMBERED);
        left.drain(..forgotten);
        self.uses = left;
        race
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Clock;
    use crate::site::Site;

    /// The `moment`th thing that a stream did, knowing what others had done.
    fn act(stream: u64, moment: u64, knows: &[(u64, u64)]) -> Act {
        let mut clock = Clock::default();
        for &(timeline, moment) in knows {
            clock.advance(timeline, moment);
        }
        clock.advance(stream, moment);
        Act { clock, site: Site::for_test(stream) }
    }

    #[test]
    fn unordered_writes_of_the_same_bytes_race() {
        let mut races = Races::default();
        assert!(races.enter(0..100, true, &act(1, 1, &[])).is_none());
        assert!(races.enter(100..200, true, &act(2, 1, &[])).is_none(), "other bytes");
        assert!(races.enter(50..60, false, &act(2, 2, &[])).is_some());
        assert!(races.enter(20..40, true, &act(3, 1, &[(1, 1)])).is_none(), "it waited");
        assert!(races.enter(0..20, true, &act(2, 3, &[(1, 1)])).is_none());
        assert!(races.enter(30..50, true, &act(1, 2, &[])).is_some(), "of the third");
    }

    #[test]
    fn reads_do_not_race_with_each_other_but_with_a_write_behind_them() {
        let mut races = Races::default();
        assert!(races.enter(0..100, false, &act(1, 1, &[])).is_none());
        assert!(races.enter(0..100, false, &act(2, 1, &[])).is_none());
        assert!(races.enter(0..100, true, &act(2, 2, &[])).is_some());
        assert!(races.enter(0..8, true, &act(3, 1, &[])).is_none(), "a word is a flag");
    }
}
