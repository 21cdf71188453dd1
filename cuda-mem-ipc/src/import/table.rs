//! Who comes first imports, who comes last gives back, and nobody gets what is on its way out.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::forked;

use super::ImportError;
use crate::primitive::{Arc, Condvar, Mutex, MutexGuard};

/// How long a wait lasts before it is looked whether a release has to be tried again.
const SLICE: Duration = Duration::from_millis(5);

pub(super) struct Table<K, V> {
    /// Held for a look-up and never with an entry's own lock.
    entries: Mutex<HashMap<K, Arc<Entry<V>>>>,
}

struct Entry<V> {
    state: Mutex<State<V>>,
    changed: Condvar,
}

enum State<V> {
    /// Somebody imports it, or its last user has gone and the driver has not let go yet.
    Busy,
    Open {
        value: Arc<V>,
        users: usize,
    },
    /// It is in no table any more.
    Gone,
}

/// One user's count.
pub(super) struct Held<V>(Arc<Entry<V>>);

/// Takes an entry out of the table when it is dropped: the memory is gone.
struct Guard<K: Eq + Hash, V> {
    table: Arc<Table<K, V>>,
    key: K,
    entry: Arc<Entry<V>>,
}

impl<K, V> Table<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::new(HashMap::new()) }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.entries).len()
    }
}

impl<K: Eq + Hash + Clone + Send + Sync + 'static, V: Send + Sync + 'static> Table<K, V> {
    /// A share in what the key names; `nudge` is called now and then while somebody else is busy with it.
    pub(super) fn import<E>(
        table: &Arc<Self>,
        key: &K,
        limit: Duration,
        nudge: impl Fn(),
        import: impl FnOnce(Box<dyn Send + Sync>) -> Result<V, E>,
    ) -> Result<(Arc<V>, Held<V>), ImportError<E>> {
        let start = Instant::now();
        loop {
            let (entry, is_new) = table.entry(key);
            if is_new {
                return Self::import_first(table, key, entry, import);
            }
            let mut state = lock(&entry.state);
            loop {
                match &mut *state {
                    State::Open { value, users } => {
                        *users += 1;
                        let value = Arc::clone(value);
                        drop(state);
                        return Ok((value, Held(entry)));
                    }
                    State::Gone => break,
                    State::Busy => {}
                }
                let left = limit.saturating_sub(start.elapsed());
                if left.is_zero() {
                    return Err(ImportError::Timeout(limit));
                }
                drop(state);
                nudge();
                state = lock(&entry.state);
                if matches!(*state, State::Busy) {
                    let waited = entry.changed.wait_timeout(state, left.min(SLICE));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// The entry of a key, and whether it was made just now.
    fn entry(&self, key: &K) -> (Arc<Entry<V>>, bool) {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(key) {
            return (Arc::clone(entry), false);
        }
        let entry = Arc::new(Entry { state: Mutex::new(State::Busy), changed: Condvar::new() });
        entries.insert(key.clone(), Arc::clone(&entry));
        (entry, true)
    }

    fn import_first<E>(
        table: &Arc<Self>,
        key: &K,
        entry: Arc<Entry<V>>,
        import: impl FnOnce(Box<dyn Send + Sync>) -> Result<V, E>,
    ) -> Result<(Arc<V>, Held<V>), ImportError<E>> {
        let guard = Guard { table: Arc::clone(table), key: key.clone(), entry: Arc::clone(&entry) };
        let value = Arc::new(import(Box::new(guard)).map_err(ImportError::Failed)?);
        let mut state = lock(&entry.state);
        // Not if its owner has let the guard go already: then it is its own affair, and nobody shares it.
        if matches!(*state, State::Busy) {
            *state = State::Open { value: Arc::clone(&value), users: 1 };
        }
        drop(state);
        entry.changed.notify_all();
        Ok((value, Held(entry)))
    }
}

impl<V> Drop for Held<V> {
    fn drop(&mut self) {
        if forked() {
            // Before any lock: the child has nothing to give back.
            return;
        }
        let mut state = lock(&self.0.state);
        let State::Open { users, .. } = &mut *state else { return };
        *users -= 1;
        if *users == 0 {
            // From here on nobody gets it. It ends with its last handle, which the caller has, and the guard with it.
            let last = std::mem::replace(&mut *state, State::Busy);
            drop(state);
            drop(last);
        }
    }
}

impl<K: Eq + Hash, V> Drop for Guard<K, V> {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let mut entries = lock(&self.table.entries);
        if entries.get(&self.key).is_some_and(|entry| Arc::ptr_eq(entry, &self.entry)) {
            entries.remove(&self.key);
        }
        drop(entries);
        let gone = std::mem::replace(&mut *lock(&self.entry.state), State::Gone);
        self.entry.changed.notify_all();
        // Outside the lock: its end may be anything.
        drop(gone);
    }
}

/// Locks, also after a panic elsewhere: what is behind the locks here is right after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
