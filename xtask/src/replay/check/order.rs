//! What each stream's later work comes after.

use std::collections::HashMap;

/// Of each other stream: the number of the event before which all it was given is done first.
type Known = HashMap<u64, u64>;

/// The waits between streams so far.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Of each stream: what it knew from which event on.
    history: HashMap<u64, Vec<(u64, Known)>>,
}

impl Order {
    /// From event `now` on, `to` comes after what `from` was given before event `before`, and after what that comes after.
    pub(super) fn wait(&mut self, now: u64, to: u64, from: u64, before: u64) {
        let mut known = self.known(to, u64::MAX).cloned().unwrap_or_default();
        let inherited = self.known(from, before).cloned().unwrap_or_default();
        for (stream, point) in inherited.into_iter().chain([(from, before)]) {
            let newest = known.entry(stream).or_default();
            *newest = point.max(*newest);
        }
        self.history.entry(to).or_default().push((now, known));
    }

    /// What a stream knew just before an event.
    fn known(&self, stream: u64, before: u64) -> Option<&Known> {
        let history = self.history.get(&stream)?;
        let count = history.partition_point(|(since, _)| *since < before);
        history.get(count.checked_sub(1)?).map(|(_, known)| known)
    }

    /// Whether work that `to` is given now comes after the event of that number on `from`.
    pub(super) fn covers(&self, to: u64, from: u64, event: u64) -> bool {
        to == from
            || self.known(to, u64::MAX).and_then(|known| known.get(&from)).is_some_and(|point| *point > event)
    }
}
