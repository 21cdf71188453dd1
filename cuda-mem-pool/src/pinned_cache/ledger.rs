//! What is in use, counted without a word that all threads write.
//!
//! Each thread has an account, which only its owner writes while it has it. What its owner gives back stays **claimed** at
//! the shared gauge, as the account's *spare* claim, and pays for what its owner takes next. So the gauge is what is in
//! use and the sum of the spare claims, and a thread that takes and gives back the same over and over does not touch it.
//!
//! - *Current.* With all accounts held, nobody takes or gives back but at the gauge itself. Once each spare claim was given
//!   back there, it is what is in use.
//! - *Peaks.* What is in use is never more than the gauge, and whoever raises the gauge above a peak raises the peak: none is
//!   missed. A claim that would do so first settles all accounts as above, and is made while they are still held: so a peak
//!   is not raised to more than what is in use.
//! - That costs a microsecond or two, and near the peak threads that work at the same time would do it to each other all the
//!   time. So there are [`BURST`] such turns, and one more each [`TURN`]. Without a turn the claim is made as the gauge
//!   stands: the peak then counts what other threads have had in use just before, too.
//!
//! An account's spare claim is never more than what its thread keeps, which bounds it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::try_cell::{Held, TryCell};
use crate::engine::stats::{Amount, Gauge, Packed};
use crate::primitive::{Mutex, lock};

/// How many claims in a row may take the spare claims of others away.
const BURST: u32 = 1000;

/// After this time there may be one more.
const TURN: Duration = Duration::from_micros(100);

/// What has a spare claim.
pub(super) trait Account {
    fn purse(&mut self) -> &mut Purse;
}

/// What a thread keeps, and how much of it is claimed: the spare claim is the difference.
///
/// It is not a number of its own, because it changes with what is kept, nearly always: so that is one store.
#[derive(Debug, Default)]
pub(super) struct Purse {
    kept: Packed,
    /// Of both numbers no more than is kept.
    unclaimed: Packed,
}

impl Purse {
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.kept.bytes()
    }

    #[inline]
    fn spare(&self) -> Packed {
        self.kept.less(self.unclaimed)
    }

    /// The owner gives something back that it keeps for itself.
    #[inline]
    pub(super) fn put(&mut self, bytes: usize) {
        self.kept = self.kept.plus(Packed::one(bytes));
    }
}

/// The gauge, and all accounts.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    gauge: Gauge,
    books: Mutex<Books<T>>,
}

#[derive(Debug)]
struct Books<T> {
    accounts: Vec<Arc<TryCell<T>>>,
    turns: Turns,
}

#[derive(Debug)]
struct Turns {
    left: u32,
    /// When the last one came.
    since: Instant,
}

impl<T: Account> Ledger<T> {
    pub(super) fn new() -> Self {
        let turns = Turns { left: BURST, since: Instant::now() };
        Self { gauge: Gauge::default(), books: Mutex::new(Books { accounts: Vec::new(), turns }) }
    }

    pub(super) fn add_account(&self, account: Arc<TryCell<T>>) {
        lock(&self.books).accounts.push(account);
    }

    pub(super) fn accounts(&self) -> Vec<Arc<TryCell<T>>> {
        lock(&self.books).accounts.clone()
    }

    /// The accounts, which are not in here any more.
    pub(super) fn take_accounts(&self) -> Vec<Arc<TryCell<T>>> {
        std::mem::take(&mut lock(&self.books).accounts)
    }

    /// Takes an account out; `then` runs before anybody sees that.
    pub(super) fn remove_account(&self, account: &Arc<TryCell<T>>, then: impl FnOnce()) {
        let mut books = lock(&self.books);
        books.accounts.retain(|known| !Arc::ptr_eq(known, account));
        then();
    }

    /// The owner of an account takes something that it keeps. False, and nothing is done, if a peak would move: then
    /// [`Ledger::claim`] is due, without the account, and after it [`Ledger::take_claimed`].
    #[inline]
    pub(super) fn take(&self, purse: &mut Purse, bytes: usize) -> bool {
        let one = Packed::one(bytes);
        if !purse.spare().covers(one) {
            return self.take_more(purse, one);
        }
        purse.kept = purse.kept.less(one);
        true
    }

    #[cold]
    fn take_more(&self, purse: &mut Purse, one: Packed) -> bool {
        let spare = purse.spare();
        let claimed = self.gauge.add_below_peak(one.without(spare));
        if claimed {
            purse.kept = purse.kept.less(one);
            purse.unclaimed = purse.kept.less(spare.without(one));
        }
        claimed
    }

    /// The owner of an account takes something that it keeps, and has claimed all of it.
    pub(super) fn take_claimed(&self, purse: &mut Purse, bytes: usize) {
        // It may be more than would be left.
        self.settle(purse);
        purse.kept = purse.kept.less(Packed::one(bytes));
        purse.unclaimed = purse.kept;
    }

    /// Somebody takes something past the accounts. Not while holding one.
    pub(super) fn claim(&self, bytes: usize) {
        let one = Packed::one(bytes);
        if self.gauge.add_below_peak(one) {
            return;
        }
        let mut books = lock(&self.books);
        let Books { accounts, turns } = &mut *books;
        if !turns.any() {
            return self.gauge.add_all(one);
        }
        let mut held = hold(accounts);
        let settled = self.settle_all(&mut held);
        self.gauge.add_all(one);
        drop(held);
        // What nobody had to give up costs nobody.
        if settled {
            turns.left -= 1;
        }
    }

    /// Somebody gives something back past the accounts, before anybody else can have it.
    #[inline]
    pub(super) fn release(&self, bytes: usize) {
        self.gauge.subtract(bytes);
    }

    /// The owner of an account keeps nothing any more. Before anybody else can have it.
    pub(super) fn release_all(&self, purse: &mut Purse) {
        self.settle(purse);
        *purse = Purse::default();
    }

    /// Gives the spare claim back.
    fn settle(&self, purse: &mut Purse) {
        let spare = purse.spare();
        if spare != Packed::default() {
            self.gauge.subtract_all(spare);
            purse.unclaimed = purse.kept;
        }
    }

    /// What is in use, exactly, and what `visit` sees of all accounts at that moment. Not while holding an account.
    pub(super) fn current(&self, mut visit: impl FnMut(&mut T)) -> Amount {
        let books = lock(&self.books);
        let mut held = hold(&books.accounts);
        self.settle_all(&mut held);
        held.iter_mut().for_each(|account| account.with(&mut visit));
        self.gauge.current()
    }

    pub(super) fn peak(&self) -> Amount {
        self.gauge.peak()
    }

    /// Has the peaks start anew from what is in use now.
    pub(super) fn reset_peak(&self) {
        let books = lock(&self.books);
        let mut held = hold(&books.accounts);
        self.settle_all(&mut held);
        self.gauge.reset_peak();
    }

    /// Gives all spare claims back. Whether there were any.
    fn settle_all(&self, held: &mut [Held<'_, T>]) -> bool {
        let mut any = false;
        for account in held {
            account.with(|account| {
                any |= account.purse().spare() != Packed::default();
                self.settle(account.purse());
            });
        }
        any
    }
}

/// Waits for each account; its owner has it for a few instructions at a time. Only who has locked the books holds several.
fn hold<T>(accounts: &[Arc<TryCell<T>>]) -> Vec<Held<'_, T>> {
    accounts.iter().map(|account| account.wait()).collect()
}

impl Turns {
    fn any(&mut self) -> bool {
        if self.left < BURST {
            let now = Instant::now();
            let more = now.saturating_duration_since(self.since).as_nanos() / TURN.as_nanos();
            if more > 0 {
                self.since = now;
                self.left = u32::try_from(more).unwrap_or(BURST).saturating_add(self.left).min(BURST);
            }
        }
        self.left > 0
    }
}

#[cfg(test)]
mod tests;
