//! Resources with streams of another driver, and of another device.

use cuda_mem_core::{Context, Error as CoreError, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{
    DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource, MempoolId,
    PinnedCachingAllocator, PinnedMemoryResource, TrackingAdaptor,
};
use cuda_mem_sim::Sim;

use crate::blocks::free;
use crate::common::gate::Gate;
use crate::rig::{on, on_simulator};

fn refused(what: &str, result: Result<impl std::fmt::Debug, Error>) {
    assert!(matches!(result, Err(Error::Core(CoreError::ForeignContext { .. }))), "{what}: {result:?}");
}

fn all(context: &Context, mut each: impl FnMut(&str, &dyn Fn(&Stream) -> Result<(), Error>)) {
    let device = DeviceMemoryResource::new(context, None).unwrap();
    let own = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default()).unwrap();
    let pinned = PinnedMemoryResource::new(context, None).unwrap();
    let cache = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
    let pinned_cache = PinnedCachingAllocator::new(context);
    let stacked = TrackingAdaptor::new(TrackingAdaptor::new(cache.clone(), false), false);
    fn through<R: MemoryResource>(resource: &R) -> impl Fn(&Stream) -> Result<(), Error> {
        move |stream| {
            let mut block = resource.allocate(10_000, stream)?;
            block.as_device_range().fill_bytes(stream, 1)?;
            let raw = resource.allocate_raw(10_000, stream)?;
            // SAFETY: allocated above, and not used.
            unsafe { resource.deallocate(raw, 10_000, stream) }
        }
    }
    each("device", &through(&device));
    each("own", &through(&own));
    each("pinned", &through(&pinned));
    each("cache", &through(&cache));
    each("pinned cache", &through(&pinned_cache));
    each("stacked", &through(&stacked));
}

#[test]
fn no_resource_takes_a_stream_of_another_driver() {
    on_simulator(|_, one| {
        on_simulator(|_, two| {
            let there = Stream::new(two).unwrap();
            all(one, |what, resource| refused(what, resource(&there)));
            // A source of another driver.
            let allocator = CachingAllocator::new(one, &CachingOptions::default()).unwrap();
            let stream = Stream::new(one).unwrap();
            let theirs = CachingAllocator::new(two, &CachingOptions::default()).unwrap();
            let id = MempoolId::for_user();
            allocator.create_or_incref_pool(id, Some(theirs.raw())).unwrap();
            allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
            refused("a source", allocator.allocate(1000, &stream));
            allocator.end_allocate_to_pool(id).unwrap();
            (0..2).for_each(|_| allocator.release_pool(id).unwrap());
            let block = allocator.allocate(1000, &stream).unwrap();
            refused("record_stream", allocator.record_stream(block.address(), &there));
            // One that has the number of a stream that the allocator serves: each driver counts for itself.
            let (mut mine, mut theirs) = (stream, there);
            while mine.id().as_raw() != theirs.id().as_raw() {
                let is_behind = mine.id().as_raw() < theirs.id().as_raw();
                let (behind, context) = if is_behind { (&mut mine, one) } else { (&mut theirs, two) };
                *behind = Stream::new(context).unwrap();
            }
            let served = allocator.allocate_by_address(1000, &mine).unwrap();
            refused("a stream of the same number", allocator.allocate(1000, &theirs));
            refused("of_stream", allocator.of_stream(&theirs));
            // Forgotten, theirs says nothing of mine: its memory serves no other stream before its work is done.
            // SAFETY: it is given no more work.
            unsafe { allocator.forget_stream(&theirs) }.unwrap();
            let gate = Gate::before(&mine);
            free(&allocator, served);
            let other = allocator.allocate(1000, &Stream::new(one).unwrap()).unwrap();
            assert_ne!(other.address(), served, "mine uses it yet");
            gate.open();
            mine.synchronize().unwrap();
            drop((other, block));
        });
    });
}

#[test]
fn streams_of_another_device_do_no_harm() {
    on(Sim::builder().devices(2), |_, one| {
        let two = one.driver().device(1).unwrap().primary_context().unwrap();
        let there = Stream::new(&two).unwrap();
        // What is misused the simulator tells.
        all(one, |what, resource| match resource(&there) {
            Ok(()) | Err(Error::Core(CoreError::ForeignContext { .. } | CoreError::OtherDevice { .. })) => {}
            Err(error) => panic!("{what}: {error}"),
        });
    });
}
