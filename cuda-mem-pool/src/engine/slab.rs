//! Records at numbers that stay theirs until they are removed.

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The first number without a value; each names the next.
    vacant: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Value(T),
    Vacant { next: u32 },
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: NONE }
    }
}

impl<T> Slab<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>()
    }

    /// Gives `value` a number; None if there are no more.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(slot) = self.slots.get_mut(self.vacant as usize)
            && let Slot::Vacant { next } = *slot
        {
            *slot = Slot::Value(value);
            return Some(std::mem::replace(&mut self.vacant, next));
        }
        let number = u32::try_from(self.slots.len()).ok().filter(|number| *number != NONE)?;
        push(&mut self.slots, Slot::Value(value));
        Some(number)
    }

    /// Takes the value away, whose number the next one gets.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slots.get_mut(number as usize).filter(|slot| matches!(slot, Slot::Value(_)))?;
        let next = std::mem::replace(&mut self.vacant, number);
        match std::mem::replace(slot, Slot::Vacant { next }) {
            Slot::Value(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(number as usize)? {
            Slot::Value(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(number as usize)? {
            Slot::Value(value) => Some(value),
            Slot::Vacant { .. } => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().zip(0u32..).filter_map(|(slot, number)| match slot {
            Slot::Value(value) => Some((number, value)),
            Slot::Vacant { .. } => None,
        })
    }
}

/// Adds a value, with room for an eighth more than there are: of books of doubled size a third would be empty.
pub(crate) fn push<T>(values: &mut Vec<T>, value: T) {
    if values.len() == values.capacity() {
        values.reserve_exact(values.len() / 8 + 4);
    }
    values.push(value);
}
