//! How the ranks tell each other what they are about to do.
//!
//! # Safety
//!
//! Declares an unsafe trait; nothing is called here.

#![allow(unsafe_code, reason = "declares an unsafe trait")]

use std::fmt;
use std::time::Duration;

use super::Result;

/// A way for all ranks to hear what each of them says, once each time. A [`Group`](super::Group) is one, for ranks of a host; a program
/// that has ranks on more hosts brings its own, over whatever its ranks talk over.
///
/// Every rank calls [`all_gather`](Self::all_gather) equally often, in the same order.
///
/// # Safety
///
/// What `all_gather` returns was said by each rank in its own call of the same number: libraries are called on the strength of it, which read
/// memory of all ranks.
pub unsafe trait Exchange: fmt::Debug + Send + Sync {
    /// What the ranks together are called.
    fn name(&self) -> &str;

    /// This process's rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Says `bytes`, at most 16384, and returns what all ranks said, by rank, this one included.
    ///
    /// # Errors
    ///
    /// Those of the exchange when a rank did not say anything within `timeout`, or is gone. What the ranks say is not matched any more then:
    /// the exchange is of no further use.
    fn all_gather(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>>;

    /// Whether all ranks are sound so far, as far as the exchange knows.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`](super::Error::Broken), or what the exchange has instead, which names the rank.
    fn check(&self) -> Result<()>;
}
