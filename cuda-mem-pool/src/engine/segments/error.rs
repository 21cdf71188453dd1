//! Why something was refused.

use crate::mempool_id::MempoolId;

/// A call that cannot be right. Nothing was changed. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// More bytes than any machine has.
    #[error("{requested} bytes are more than a block can have; the most is {most}")]
    TooLarge {
        /// The bytes that were asked for.
        requested: u64,
        /// The bytes that are possible.
        most: u64,
    },
    /// A block that was freed, or was never one of this heap.
    #[error("there is no such block at {address:#x}: it was freed, or is another heap's")]
    UnknownBlock {
        /// Where it was.
        address: u64,
    },
    /// A block is not what the call is for.
    #[error("the block at {address:#x} is {state}; this call takes one that is {accepted}")]
    State {
        /// Where the block is.
        address: u64,
        /// What it is.
        state: super::BlockState,
        /// What it should be.
        accepted: super::BlockState,
    },
    /// A segment that is none.
    #[error(
        "a segment of {bytes} bytes cannot be at {address:#x}: address and bytes must be multiples of 512, not 0, and fit the address space"
    )]
    BadSegment {
        /// Where it was to be.
        address: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// Two segments share bytes.
    #[error("the segment of {bytes} bytes at {address:#x} overlaps the one at {other:#x}")]
    Overlap {
        /// Where it was to be.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// The segment that is there already.
        other: u64,
    },
    /// As many blocks as there are numbers for.
    #[error("the heap has {} blocks, for which alone it has numbers", u32::MAX)]
    Full,
    /// A checkpoint cannot be taken or restored while streams still use freed blocks.
    #[error("the block at {address:#x} was freed and is still in use on other streams: complete it first")]
    Pending {
        /// Where the block is.
        address: u64,
    },
    /// A checkpoint's segment is not in this heap.
    #[error("the checkpoint has a segment of {bytes} bytes at {address:#x} that the heap has no longer")]
    MissingSegment {
        /// Where it was.
        address: u64,
        /// Its bytes.
        bytes: u64,
    },
}

/// Why private pools refused. Nothing was changed. [`PrivatePools`](super::PrivatePools) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The name that stands for no pool.
    #[error(
        "{} names no pool; take a name from MempoolId::for_user or MempoolId::for_graph",
        MempoolId::NONE
    )]
    NoPool,
    /// There is no such private pool.
    #[error("there is no private pool {id}: it was never made, or was released and its memory given back")]
    Unknown {
        /// The pool.
        id: MempoolId,
    },
    /// The pool's last use has ended.
    #[error("the private pool {id} was released as often as it was taken; it can only give its memory back")]
    Released {
        /// The pool.
        id: MempoolId,
    },
    /// A pool's memory comes from where it came from first.
    #[error("the private pool {id} exists already; the source of its segments is named when it is made")]
    SourceIsSet {
        /// The pool.
        id: MempoolId,
    },
    /// Allocations go to this private pool already.
    #[error("allocations go to the private pool {id} already; end that with end_allocate first")]
    AlreadyRouted {
        /// The pool.
        id: MempoolId,
    },
    /// No allocations go to this private pool.
    #[error("no allocations go to the private pool {id}; begin_allocate has not been called, or was ended")]
    NotRouted {
        /// The pool.
        id: MempoolId,
    },
    /// The last use of a private pool cannot end while allocations go to it.
    #[error("the private pool {id} cannot be released while allocations go to it; call end_allocate first")]
    StillRouted {
        /// The pool.
        id: MempoolId,
    },
    /// What a pool's heap refused.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}
