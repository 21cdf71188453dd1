//! Records at numbers that stay theirs until they are removed.

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    /// The numbers without a value. The next value gets the last one.
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<T>>() + self.vacant.capacity() * size_of::<u32>()
    }

    /// Gives `value` a number, or back if there are no more.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(number) = self.vacant.pop() {
            self.slots[number as usize] = Some(value);
            return Ok(number);
        }
        match u32::try_from(self.slots.len()) {
            Ok(number) if number != NONE => {
                push(&mut self.slots, Some(value));
                Ok(number)
            }
            _ => Err(value),
        }
    }

    /// Takes the value away, whose number the next one gets.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.slots.get_mut(number as usize)?.take()?;
        push(&mut self.vacant, number);
        Some(value)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }
}

/// Adds a value, with room for an eighth more than there are: of books of doubled size a third would be empty.
pub(crate) fn push<T>(values: &mut Vec<T>, value: T) {
    if values.len() == values.capacity() {
        values.reserve_exact(values.len() / 8 + 4);
    }
    values.push(value);
}
