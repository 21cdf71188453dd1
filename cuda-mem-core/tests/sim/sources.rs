//! Memory of somebody else's: it goes back once, whatever becomes of the buffer.

use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_core::raw_pool::{self, MemoryPool};
use cuda_mem_core::sys::{CUdeviceptr, CUresult};
use cuda_mem_core::{Context, DeviceBuffer, Error, MemorySource, Result, Stream, StreamId};

use crate::rig::on_simulator;

const LEN: usize = 4096;

/// A pool that remembers what came back, and refuses so many times to take it.
#[derive(Debug)]
struct Pool {
    pool: MemoryPool,
    returned: Mutex<Vec<(CUdeviceptr, Layout, StreamId)>>,
    refusals: AtomicUsize,
}

// SAFETY: the driver gives memory of a pool to one receiver until it is freed, aligned to 256 bytes.
unsafe impl MemorySource for Pool {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Result<()> {
        let less = |refusals: usize| refusals.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Err(Error::Capturing { call: "a test" });
        }
        // SAFETY: the caller's promise.
        unsafe { raw_pool::free(address, stream) }?;
        self.returned.lock().unwrap().push((address, layout, stream.id()));
        Ok(())
    }
}

impl Pool {
    fn new(context: &Context, refusals: usize) -> Arc<Self> {
        let pool = MemoryPool::current_of_device(context.device()).unwrap();
        Arc::new(Self { pool, returned: Mutex::default(), refusals: AtomicUsize::new(refusals) })
    }

    fn returned(&self) -> Vec<(CUdeviceptr, Layout, StreamId)> {
        self.returned.lock().unwrap().clone()
    }
}

fn layout() -> Layout {
    Layout::from_size_align(LEN, 256).unwrap()
}

fn buffer(pool: &Arc<Pool>, stream: &Stream) -> Result<DeviceBuffer<u8>> {
    let address = pool.pool.allocate(LEN, stream)?;
    // SAFETY: memory of the pool, allocated on this stream and known to nobody else.
    unsafe { DeviceBuffer::from_source(stream, address, layout(), Arc::clone(pool) as Arc<dyn MemorySource>) }
}

#[test]
fn memory_goes_back_with_its_layout_whatever_its_elements_are_by_then() {
    on_simulator(|_, context| {
        let (pool, stream) = (Pool::new(context, 0), Stream::new(context).unwrap());
        let bytes = buffer(&pool, &stream).unwrap();
        let address = bytes.as_raw();
        let triples = bytes.cast::<[u32; 3]>().unwrap();
        assert_eq!((triples.len(), triples.as_raw()), (LEN / 12, address));
        let bytes = triples.cast::<u8>().unwrap();
        assert_eq!(bytes.len(), LEN / 12 * 12);
        drop(bytes);
        assert_eq!(pool.returned(), [(address, layout(), stream.id())]);
        buffer(&pool, &stream).unwrap().close().unwrap();
        assert_eq!(pool.returned().len(), 2);
    });
}

#[test]
fn memory_goes_back_when_no_buffer_comes_of_it() {
    on_simulator(|sim, context| {
        let (pool, stream) = (Pool::new(context, 0), Stream::per_thread(context).unwrap());
        // The point behind the allocation, which only the thread itself can name later.
        (0..2).for_each(|_| sim.fail_call("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN));
        assert!(matches!(buffer(&pool, &stream), Err(Error::Driver(_))));
        assert_eq!(pool.returned().len(), 1);
    });
}

#[test]
fn memory_that_is_refused_is_offered_again() {
    on_simulator(|_, context| {
        let (pool, stream) = (Pool::new(context, 2), Stream::new(context).unwrap());
        drop(buffer(&pool, &stream).unwrap());
        assert_eq!((pool.returned().len(), context.driver().reclaim()), (0, 1));
        assert_eq!((context.driver().reclaim(), pool.returned().len()), (0, 1));
    });
}

#[test]
fn memory_of_another_threads_stream_goes_back_on_this_ones() {
    on_simulator(|_, context| {
        let pool = Pool::new(context, 0);
        let theirs = std::thread::scope(|scope| {
            let made = || buffer(&pool, &Stream::per_thread(context).unwrap()).unwrap();
            scope.spawn(made).join().unwrap()
        });
        drop(theirs);
        let here = Stream::per_thread(context).unwrap();
        assert_eq!(pool.returned().iter().map(|(.., stream)| *stream).collect::<Vec<_>>(), [here.id()]);
    });
}

#[test]
fn memory_that_is_taken_out_stays_allocated() {
    on_simulator(|sim, context| {
        let (pool, stream) = (Pool::new(context, 0), Stream::new(context).unwrap());
        let (address, home) = buffer(&pool, &stream).unwrap().into_raw();
        assert_eq!((pool.returned().len(), &home), (0, &stream));
        assert_eq!(sim.log().count("cuMemFreeAsync"), 0);
        // SAFETY: memory of a pool, which nobody else frees and nothing uses.
        unsafe { raw_pool::free(address, &home) }.unwrap();
    });
}
