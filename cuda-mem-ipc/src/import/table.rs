//! The first share imports, the last one releases, and memory that is being released is never handed out.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc as StdArc, PoisonError, Weak};
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
    /// What others may share, as long as it has a user: from then on the driver has not let go yet. None once it is in no table any more.
    value: Mutex<Option<Weak<V>>>,
    changed: Condvar,
}

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
    /// A share in the memory that the key names; `nudge` is called now and then while another thread imports or releases it.
    pub(super) fn import<E>(
        table: &Arc<Self>,
        key: &K,
        limit: Duration,
        nudge: impl Fn(),
        import: impl FnOnce(Box<dyn Send + Sync>) -> Result<V, E>,
    ) -> Result<StdArc<V>, ImportError<E>> {
        let start = Instant::now();
        loop {
            let (entry, is_new) = table.entry(key);
            if is_new {
                let guard = Guard { table: Arc::clone(table), key: key.clone(), entry: Arc::clone(&entry) };
                let value = StdArc::new(import(Box::new(guard)).map_err(ImportError::Failed)?);
                // If its owner has let the guard go already it is its own affair, and nobody shares it.
                if let Some(shared) = &mut *lock(&entry.value) {
                    *shared = StdArc::downgrade(&value);
                }
                entry.changed.notify_all();
                return Ok(value);
            }
            let (mut state, mut was_nudged) = (lock(&entry.value), false);
            while let Some(value) = &*state {
                if let Some(value) = value.upgrade() {
                    return Ok(value);
                }
                let left = limit.saturating_sub(start.elapsed());
                if left.is_zero() {
                    return Err(ImportError::Timeout(limit));
                }
                if was_nudged {
                    let waited = entry.changed.wait_timeout(state, left.min(SLICE));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                } else {
                    drop(state);
                    nudge();
                    state = lock(&entry.value);
                }
                was_nudged = !was_nudged;
            }
        }
    }

    fn entry(&self, key: &K) -> (Arc<Entry<V>>, bool) {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(key) {
            return (Arc::clone(entry), false);
        }
        let entry = Arc::new(Entry { value: Mutex::new(Some(Weak::new())), changed: Condvar::new() });
        entries.insert(key.clone(), Arc::clone(&entry));
        (entry, true)
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
        *lock(&self.entry.value) = None;
        self.entry.changed.notify_all();
    }
}

/// Locks, also after a panic elsewhere: what is behind the locks here is right after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
