//! What putting tags to sleep and waking them is refused by.

use std::fmt;

/// Why a tag was not put to sleep, did not wake, or cannot be used now. Nothing was changed.
/// [`Tag`](crate::caching::Tag) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SleepError {
    /// An allocation in a tag that sleeps, or what else needs one that is awake.
    #[error("the tag {tag:?} sleeps: wake it before anything is allocated in it or kept")]
    Asleep { tag: String },
    /// There is no backup of a tag that is awake.
    #[error("the tag {tag:?} is awake, and has no backup to be read")]
    Awake { tag: String },
    /// Another thread puts the tag to sleep, wakes it or looks at it, or gives memory of it back.
    #[error("another thread is at work with the tag {tag:?}: try again when it is done")]
    Busy { tag: String },
    /// A tag of another allocator.
    #[error("the tag {tag:?} is another allocator's")]
    OtherAllocator { tag: String },
    /// An address is no memory of the tag, or of any tag.
    #[error("{address:#x} is no memory of {}", TagName(.tag))]
    NotOfTag { tag: Option<String>, address: u64 },
    /// A tag has a block that does not belong to whoever puts it to sleep.
    #[error("the tag has a block at {address:#x} that is not among those to be put to sleep")]
    NotOwned { address: u64 },
    /// There is no host memory for the backup.
    #[error("no pinned host memory of {bytes} bytes for the backup, everything is awake: {source}")]
    NoBackup { bytes: usize, source: cuda_mem_core::Error },
    /// There is not enough memory to wake tags. All of them sleep on.
    #[error(
        "waking takes {needed} bytes, of which {missing} are missing; the allocator holds {held} for what is awake: free \
         some of it, or other processes' memory, and try again"
    )]
    NoMemory { needed: usize, missing: usize, held: usize },
}

struct TagName<'a>(&'a Option<String>);

impl fmt::Display for TagName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(tag) => write!(f, "the tag {tag:?}"),
            None => f.write_str("any tag of this allocator"),
        }
    }
}
