//! What an exporter says of a segment, and where it lies.

use super::WireError;
use super::bytes::{Fields, check};

/// How many handles a segment has at the most: each is a descriptor of one message, and a mapping in each importer.
pub const MOST_HANDLES: usize = 64;

/// Memory that buffers are parts of. [`Message`](super::Message) has an example of another message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its number, which the exporter's process gives once.
    pub segment: u64,
    /// A number of the exporter's program, which tells a process from what it was before `exec`.
    pub generation: u64,
    /// Its size.
    pub bytes: u64,
    /// Where it lies.
    pub place: Place,
}

/// Where a segment lies. [`Message`](super::Message) has an example of another message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is on the stack for as long as a message is read")]
pub enum Place {
    /// On the device with this UUID, one handle.
    Device([u8; 16]),
    /// On the host, a file in memory.
    Host,
    /// In a pool of the device with this UUID.
    DevicePool {
        /// The device.
        uuid: [u8; 16],
        /// What the driver exports the block as.
        block: [u8; 64],
    },
    /// In a pool of a node of the host.
    NodePool {
        /// The node.
        node: u32,
        /// What the driver exports the block as.
        block: [u8; 64],
    },
    /// On the device with this UUID, several handles side by side.
    Parts {
        /// The device.
        uuid: [u8; 16],
        /// The size of each.
        parts: Parts,
    },
}

/// The sizes of a segment's handles, in their order: two at the least, [`MOST_HANDLES`] at the most.
/// [`Message`](super::Message) has an example of another message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    count: usize,
    sizes: [u64; MOST_HANDLES],
}

impl Parts {
    /// So many sizes; none for fewer than two or more than [`MOST_HANDLES`], for a size of 0, and for more together than there
    /// are addresses.
    #[must_use]
    pub fn new(sizes: &[u64]) -> Option<Self> {
        let mut parts = Self { count: sizes.len(), sizes: [0; MOST_HANDLES] };
        parts.sizes.get_mut(..sizes.len())?.copy_from_slice(sizes);
        let is_sound = sizes.len() >= 2 && !sizes.contains(&0);
        let total = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
        total.filter(|total| is_sound && *total <= isize::MAX as u64).map(|_| parts)
    }

    /// The sizes.
    #[must_use]
    pub fn sizes(&self) -> &[u64] {
        self.sizes.get(..self.count).unwrap_or_default()
    }

    fn total(&self) -> u64 {
        self.sizes().iter().sum()
    }
}

impl Place {
    /// Whether its exporter has to hear of its end.
    pub(in crate::shared) fn is_in_a_pool(&self) -> bool {
        matches!(self, Self::DevicePool { .. } | Self::NodePool { .. })
    }
}

impl Segment {
    /// How many descriptors come with it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        if let Place::Parts { parts, .. } = &self.place { parts.sizes().len() } else { 1 }
    }

    pub(super) fn put(&self, mut put: impl FnMut(&[u8])) {
        let kind: u64 = match self.place {
            Place::Device(_) => 0,
            Place::Host => 1,
            Place::DevicePool { .. } => 2,
            Place::NodePool { .. } => 3,
            Place::Parts { .. } => 4,
        };
        for number in [self.segment, self.generation, self.bytes, kind] {
            put(&number.to_le_bytes());
        }
        match &self.place {
            Place::Device(uuid) => put(uuid),
            Place::Host => put(&[0; 16]),
            Place::DevicePool { uuid, block } => {
                put(uuid);
                put(block);
            }
            Place::NodePool { node, block } => {
                put(&u128::from(*node).to_le_bytes());
                put(block);
            }
            Place::Parts { uuid, parts } => {
                put(uuid);
                put(&(parts.sizes().len() as u64).to_le_bytes());
                parts.sizes().iter().for_each(|size| put(&size.to_le_bytes()));
            }
        }
    }
}

impl Fields<'_> {
    pub(super) fn segment(&mut self) -> Result<Segment, WireError> {
        let (segment, generation, bytes) = (self.number()?, self.number()?, self.number()?);
        let (kind, home) = (self.number()?, self.take::<16>()?);
        check("size", bytes, bytes > 0 && bytes <= isize::MAX as u64)?;
        let place = match kind {
            0 => Place::Device(home),
            1 if home == [0; 16] => Place::Host,
            2 => Place::DevicePool { uuid: home, block: self.take()? },
            3 => {
                let node = u128::from_le_bytes(home);
                let wrong =
                    |_| WireError::Value { field: "node", value: u64::try_from(node).unwrap_or(u64::MAX) };
                Place::NodePool { node: u32::try_from(node).map_err(wrong)?, block: self.take()? }
            }
            4 => {
                let parts = self.parts()?;
                check("size", bytes, bytes == parts.total())?;
                Place::Parts { uuid: home, parts }
            }
            value => return Err(WireError::Value { field: "place", value }),
        };
        Ok(Segment { segment, generation, bytes, place })
    }

    fn parts(&mut self) -> Result<Parts, WireError> {
        let value = self.number()?;
        let wrong = || WireError::Value { field: "number of handles", value };
        let count = usize::try_from(value).ok().filter(|count| *count <= MOST_HANDLES).ok_or_else(wrong)?;
        let mut sizes = [0; MOST_HANDLES];
        let sizes = sizes.get_mut(..count).unwrap_or_default();
        for size in &mut *sizes {
            *size = self.number()?;
        }
        Parts::new(sizes).ok_or_else(wrong)
    }
}
