//! What the measures cost with hardly anything, or nothing, to measure.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_pool::Error;
use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::Allocator;

/// What no cache can do without: a block from the thread's own list and back, and one count that others may read.
pub(crate) struct Floor;

thread_local! {
    static BLOCKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static COUNT: AtomicU64 = const { AtomicU64::new(0) };
}

impl Allocator for Floor {
    fn allocate(&self, _bytes: usize, _stream: &Stream) -> Result<u64, Error> {
        COUNT.with(|count| count.fetch_add(1, Ordering::Relaxed));
        Ok(BLOCKS.with_borrow_mut(Vec::pop).unwrap_or(4096))
    }

    unsafe fn free(&self, address: u64) {
        BLOCKS.with_borrow_mut(|blocks| blocks.push(black_box(address)));
    }
}

/// The loop around it.
pub(crate) struct Nothing;

impl Allocator for Nothing {
    fn allocate(&self, bytes: usize, _stream: &Stream) -> Result<u64, Error> {
        Ok(black_box(bytes as u64))
    }

    unsafe fn free(&self, address: u64) {
        black_box(address);
    }
}
