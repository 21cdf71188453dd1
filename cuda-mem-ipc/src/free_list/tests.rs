use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Names of what has to be waited for.
impl PendingUses for BTreeSet<u32> {
    fn join(&mut self, other: Self) {
        self.extend(other);
    }
}

const BYTES: usize = 64;

#[derive(Debug, Clone)]
enum Step {
    Take(usize),
    Give(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(1..20usize).prop_map(Step::Take), any::<usize>().prop_map(Step::Give)];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Every byte has one owner, free neighbours are one region, the fit is best, and whoever gets a byte is told of its last owner.
    #[test]
    fn a_list_has_what_a_row_of_bytes_has(steps in steps()) {
        let mut list = FreeList::new(BYTES, BTreeSet::new());
        let mut owner: [Option<u32>; BYTES] = [None; BYTES];
        let mut last = [None::<u32>; BYTES];
        let mut taken = Vec::new();
        for (number, step) in (0u32..).zip(steps) {
            match step {
                Step::Take(len) => {
                    let runs = runs(&owner);
                    let fits = runs.iter().filter(|run| run.1 >= len).map(|run| run.1).min();
                    let got = list.take(len, |_| true);
                    prop_assert_eq!(got.is_some(), fits.is_some());
                    if let Some((offset, pending)) = got {
                        let run = runs.iter().find(|run| run.0 == offset).expect("the start of a free run");
                        prop_assert_eq!(Some(run.1), fits);
                        for byte in offset..offset + len {
                            prop_assert!(owner[byte].replace(number).is_none());
                            prop_assert!(last[byte].is_none_or(|name| pending.contains(&name)));
                        }
                        taken.push((number, offset, len));
                    }
                }
                Step::Give(index) if !taken.is_empty() => {
                    let (number, offset, len) = taken.swap_remove(index % taken.len());
                    list.give(offset, len, BTreeSet::from([number]));
                    for byte in offset..offset + len {
                        owner[byte] = None;
                        last[byte] = Some(number);
                    }
                }
                Step::Give(_) => {}
            }
            prop_assert_eq!(list.is_unused(), taken.is_empty());
        }
    }
}

fn runs(owner: &[Option<u32>]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (at, _) in owner.iter().enumerate().filter(|(_, owner)| owner.is_none()) {
        match runs.last_mut() {
            Some(run) if run.0 + run.1 == at => run.1 += 1,
            _ => runs.push((at, 1)),
        }
    }
    runs
}

#[test]
fn a_region_that_need_not_be_waited_for_is_preferred_to_a_smaller_one() {
    let mut list = FreeList::new(100, BTreeSet::new());
    let taken: Vec<_> = [10, 5, 20, 5, 60].map(|len| list.take(len, |_| true).unwrap().0).into();
    list.give(taken[0], 10, BTreeSet::from([1]));
    list.give(taken[2], 20, BTreeSet::new());
    assert_eq!(list.take(8, BTreeSet::is_empty).unwrap().0, taken[2]);
    assert_eq!(list.take(8, |_| true).unwrap().0, taken[0]);
    assert!(list.take(61, |_| true).is_none());
}
