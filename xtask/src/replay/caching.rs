//! Ours, on the model. Not there yet.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::candidate::Candidate;
use super::model::Model;

/// The caching allocator over the model; without moving pages if they are to stay.
pub(crate) fn over_model(_model: Arc<Model>, moves: bool) -> Result<Box<dyn Candidate>> {
    let name = if moves { "caching" } else { "caching-no-move" };
    bail!("the allocator `{name}` is not there yet; there are native, expandable and driver-pool")
}
