//! When moving pages would never end: memory is given instead.
//!
//! Moving pays where blocks stay for a while. A program that frees and allocates other large sizes all the time has pages moved
//! for each block, and the calls for them are all that it does. What they cost is a *debt*, which each free pays a part of. While
//! more is owed than a program with pauses ever does, new memory is made rather than pages moved, and what was given then stays.

use std::collections::HashMap;

use super::backend::Backend;
use super::heap::StreamHeap;
use super::policy::{FEW, Policy};
use super::source::{GrowError, Load, PageSource};
use super::window::whole_pages;

/// What is given at once is about this part of what is held, since a long row is cut up less than as much memory given block by
/// block, so that less is given in the end.
const PART: usize = 8;

/// And no more than so many blocks like the one that is asked for: small ones need no long rows.
const BLOCKS: usize = 4;

/// What moving has cost, against what was done with it.
#[derive(Debug, Default)]
pub(super) struct Haste {
    /// Microseconds of driver calls that nothing has paid for.
    debt: u64,
    /// How much of that is for the block that is asked for now.
    of_this_block: u64,
    /// The frees of each heap that have paid.
    paid: HashMap<u32, u64>,
    /// So much may be held because it was given.
    given: usize,
    /// The threads that wait for the source, with the one that has it.
    threads: usize,
}

impl Haste {
    /// Microseconds of driver calls that nothing has paid for.
    pub(super) const fn owed(&self) -> u64 {
        self.debt
    }

    /// So much may be held because it was given.
    pub(super) const fn given(&self) -> usize {
        self.given
    }

    /// Whether other threads wait for the source.
    pub(super) const fn keeps_waiting(&self) -> bool {
        self.threads > 1
    }

    /// Less is held than before.
    pub(super) fn take_back(&mut self, held: usize) {
        self.given = self.given.min(held);
    }

    /// There is nothing to give.
    pub(super) fn give_up(&mut self) {
        (self.debt, self.given) = (0, 0);
    }

    /// Host memory that the books take.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.paid.capacity().saturating_mul(size_of::<(u32, u64)>())
    }

    /// Whether memory is given rather than moved: from too much debt on until nothing is owed.
    pub(super) const fn is_made(&self, policy: &Policy) -> bool {
        self.debt > if self.given > 0 { 0 } else { policy.patience }
    }
}

impl<B: Backend> PageSource<B> {
    /// The frees of a heap since it came last pay for what was moved.
    pub(super) fn pay(&mut self, heap: u32, mine: &StreamHeap) {
        self.haste.of_this_block = 0;
        let paid = self.haste.paid.entry(heap).or_default();
        let frees = mine.frees().saturating_sub(std::mem::replace(paid, mine.frees()));
        self.habits.pay(heap, frees);
        // What was given shall not be asked for again and again. Threads that wait for each other free by turns: each of them alone would
        // have paid for what all of them lost.
        let each = if self.haste.given > 0 { 1 } else { (self.policy.credit / self.waiting()).max(1) };
        self.haste.debt = self.haste.debt.saturating_sub(frees.saturating_mul(each));
    }

    /// So many threads wait for the source, the one among them that asks it now: what it does takes the time of all.
    pub(crate) fn set_threads(&mut self, threads: usize) {
        self.haste.threads = threads;
    }

    /// How many threads a microsecond in the source takes from: of many heaps, each with a thread of its own, most wait for it meanwhile.
    fn waiting(&self) -> u64 {
        if self.marks.len() > FEW { self.haste.threads.max(1) as u64 } else { 1 }
    }

    /// Pages were moved for so many microseconds.
    pub(super) fn charge(&mut self, microseconds: i64) {
        // Where little is held, blocks find the windows that they had.
        if self.policy.moves && self.ground.bytes() >= self.little() {
            let left = self.policy.of_one_block.saturating_sub(self.haste.of_this_block);
            let counted = microseconds.unsigned_abs().min(left);
            self.haste.of_this_block += counted;
            let debt = self.haste.debt.saturating_add(counted.saturating_mul(self.waiting()));
            self.haste.debt = debt.min(self.policy.patience * 2);
        }
    }

    /// What may be held beyond what the policy allows a program that has time.
    pub(super) fn given(&self, size: usize, load: Load) -> usize {
        if !self.haste.is_made(&self.policy) {
            return self.haste.given;
        }
        let most = load.peak.max(load.active.saturating_add(size));
        self.haste.given.max(most / 1000 * (1000 + self.policy.hasty))
    }

    /// What is held now may stay, if it is more than the policy allows a program that has time.
    pub(super) fn give(&mut self, size: usize, load: Load) {
        if self.haste.is_made(&self.policy) && self.ground.bytes() > self.slack(size, load) {
            self.haste.given = self.haste.given.max(self.ground.bytes());
        }
    }

    /// New memory for all of a block, behind what was given before, without a look at what there is.
    pub(super) fn present(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        size: usize,
        load: Load,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        let left = self.allowed(size, load).saturating_sub(self.ground.bytes());
        let (exact, longer) = (whole_pages(size as u64) as usize, size.next_power_of_two());
        let step = longer.max((self.ground.bytes() / PART).next_power_of_two().min(longer * BLOCKS));
        if !self.haste.is_made(&self.policy) || exact > left {
            return Ok(None);
        }
        let fitting = [step, longer].into_iter().find(|bytes| *bytes <= left);
        let bytes = fitting.unwrap_or(exact).max(exact);
        if self.presents.1 - self.presents.0 < bytes as u64 {
            // A program that gives its cache back all the time would use up all addresses.
            self.presents = if let Some(empty) = self.ground.empty_given(bytes as u64) {
                empty
            } else {
                let Some((start, end)) = self.reserve(bytes as u64)? else { return Ok(None) };
                self.ground.add_given(start, end);
                (start, end)
            };
        }
        let Some(chunk) = self.create(heap, bytes)? else {
            self.haste.give_up();
            return Ok(None);
        };
        let address = self.presents.0;
        self.move_to(heap, mine, chunk, address)?;
        self.presents.0 += bytes as u64;
        self.give(size, load);
        Ok(Some(address))
    }
}
