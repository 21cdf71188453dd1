//! PyTorch's two policies as models: what the peers would reserve for a trace, without a GPU.
//!
//! Both give the best fitting free block by stream, size and address, and what is left of it stays free. Small blocks, up to
//! 1 MiB, and large ones never share memory. Where nothing fits, [`Native`] allocates a segment, and [`Expandable`] maps more
//! chunks behind what a stream has. Blocks that another stream used wait until its event has completed. Memory goes back only
//! when there is no more of it.

mod blocks;
mod cache;
mod expandable;
mod native;
#[cfg(test)]
mod tests;

pub(crate) use expandable::Expandable;
pub(crate) use native::Native;
