//! Small programs that together use every call of the crate, each from the first call to the last drop.
//!
//! They are run as they are and with each of their driver calls failing in turn. What the machine lacks is an error that they
//! return; wrong bytes and wrong books panic.

mod caching;
mod caching_pools;
mod pinned_cache;
mod sleep;

use cuda_mem_core::{Context, Stream, Transfer};
use cuda_mem_pool::{
    Attributes, DeviceMemoryResource, DeviceMemoryResourceOptions, Error, HostDeviceAccessible,
    MemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions, Result, TrackingAdaptor,
};

use crate::common::pattern;
use crate::common::scenarios::while_capturing;
use crate::machines::Machine;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Context) -> Result<()>,
    /// Whether it succeeds on a machine; elsewhere its first call says why not.
    pub(crate) works_on: fn(Machine) -> bool,
}

const fn scenario(
    name: &'static str,
    run: fn(&Context) -> Result<()>,
    works_on: fn(Machine) -> bool,
) -> Scenario {
    Scenario { name, run, works_on }
}

pub(crate) const ALL: &[Scenario] = &[
    scenario("a device pool", device_pool, |_| true),
    scenario("the device's own pool", devices_own_pool, |_| true),
    scenario("a device pool for peers", peers, |machine| machine.peers),
    scenario("a device pool for other processes", device_pool_shared, |_| true),
    scenario("a pinned pool", pinned_pool, Machine::has_host_pools),
    scenario("the host's own pool", hosts_own_pool, Machine::has_host_pools),
    scenario("a pinned pool on a node", pinned_pool_on_a_node, Machine::has_node_pools),
    scenario("a pinned pool next to the device", pinned_pool_near, Machine::has_node_pools),
    scenario("a pinned pool for other processes", pinned_pool_shared, Machine::has_node_pools),
    scenario("a pinned pool on the current device", pinned_pool_on_current_device, Machine::has_host_pools),
    scenario("memory of a per-thread stream", per_thread_memory, |_| true),
    scenario("memory by address", memory_by_address, |_| true),
    scenario("adaptors", adaptors, |_| true),
    scenario("adaptors beside a capture", adaptors_beside_a_capture, |_| true),
    scenario("a pinned cache", pinned_cache::owned, |_| true),
    scenario("a pinned cache by address", pinned_cache::freed_by_address, |_| true),
    scenario("a pinned cache beside a capture", pinned_cache::beside_a_capture, |_| true),
    scenario("a caching allocator", caching::owned, |_| true),
    scenario("a caching allocator without free memory", caching::full, |_| true),
    scenario("a caching allocator beside a capture", caching::beside_a_capture, |_| true),
    scenario("private pools", caching_pools::pools, |_| true),
    scenario("a private pool beside a capture", caching_pools::beside_a_capture, |_| true),
    scenario("tags that sleep and wake", sleep::cycle, |_| true),
    scenario("adaptors over a pinned cache", pinned_cache::under_adaptors, |_| true),
];

const LEN: usize = 4099;

/// Every attribute, read and set to what it was.
fn attributes(attributes: Attributes<'_>) -> Result<()> {
    attributes.set_reuse_follow_event_dependencies(attributes.reuse_follow_event_dependencies()?)?;
    attributes.set_reuse_allow_opportunistic(attributes.reuse_allow_opportunistic()?)?;
    attributes.set_reuse_allow_internal_dependencies(attributes.reuse_allow_internal_dependencies()?)?;
    attributes.set_release_threshold(attributes.release_threshold()?)?;
    assert!(attributes.used_mem_current()? <= attributes.reserved_mem_current()?);
    assert!(attributes.used_mem_high()? <= attributes.reserved_mem_high()?);
    attributes.reset_used_mem_high()?;
    attributes.reset_reserved_mem_high()
}

/// What every resource does: memory with and without a stream, by its owner and dropped, beyond what there is.
fn serves(resource: &impl MemoryResource) -> Result<()> {
    let stream = Stream::new(resource.resource_context().context())?;
    let mut block = resource.allocate(LEN, &stream)?;
    let without = resource.allocate(LEN, None)?;
    assert!(block.address() != without.address());
    block.as_device_range().fill_bytes(&stream, 7)?;
    block.close().map_err(|refused| refused.error)?;
    let most = isize::MAX as usize - 255;
    assert!(resource.allocate(most, &stream).is_err());
    drop(without);
    stream.synchronize()?;
    Ok(())
}

fn device_pool(context: &Context) -> Result<()> {
    let resource = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?;
    serves(&resource)?;
    attributes(resource.attributes())?;
    resource.trim_to(0)?;
    let stream = Stream::new(context)?;
    let bytes = pattern(LEN, 1);
    let block = resource.allocate(LEN, &stream)?;
    block.copy_from_slice(&stream, &bytes)?;
    resource.close();
    assert_eq!(block.to_vec(&stream)?, bytes);
    Ok(())
}

fn devices_own_pool(context: &Context) -> Result<()> {
    let resource = DeviceMemoryResource::new(context, None)?;
    assert!(!resource.is_handle_owned());
    serves(&resource)
}

fn peers(context: &Context) -> Result<()> {
    let resource = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?;
    let devices = context.driver().devices()?;
    resource.set_peer_accessible_by(&devices)?;
    assert_eq!(resource.peer_accessible_by()?, devices[1..]);
    let block = resource.allocate(LEN, None)?;
    resource.set_peer_accessible_by(&[])?;
    assert_eq!(resource.peer_accessible_by()?, []);
    resource.set_peer_accessible_by(&devices)?;
    // With others let in to the end.
    drop(block);
    Ok(())
}

fn device_pool_shared(context: &Context) -> Result<()> {
    let options = DeviceMemoryResourceOptions::default().with_ipc_enabled(true).with_max_size(64 << 20);
    let resource = DeviceMemoryResource::new(context, &options)?;
    serves(&resource)?;
    let (handle, uuid) = (resource.allocation_handle()?, resource.uuid().unwrap());
    let mapped = DeviceMemoryResource::from_allocation_handle(context, handle, uuid)?;
    assert_eq!(mapped.register(uuid)?, mapped);
    assert_eq!(DeviceMemoryResource::from_registry(uuid)?, mapped);
    assert!(matches!(mapped.allocate(LEN, None), Err(Error::Mapped | Error::Core(_))));
    Ok(())
}

fn pinned_works(resource: &PinnedMemoryResource) -> Result<()> {
    serves(resource)?;
    assert!(resource.is_device_accessible()?);
    goes_both_ways(resource)
}

/// Bytes that the host writes go to the device and back.
fn goes_both_ways(resource: &impl MemoryResource<Access = HostDeviceAccessible>) -> Result<()> {
    let context = resource.resource_context().context();
    let stream = Stream::new(context)?;
    let bytes = pattern(LEN, 2);
    let mut source = resource.allocate(LEN, &stream)?;
    source.as_mut_slice()?.copy_from_slice(&bytes);
    let middle = DeviceMemoryResource::new(context, None)?.allocate(LEN, &stream)?;
    let source = Transfer::upload(&stream, source, &middle.whole()).map_err(|refused| refused.error)?;
    let target = resource.allocate(LEN, &stream)?;
    let target = Transfer::download(&stream, &middle.whole(), target).map_err(|refused| refused.error)?;
    assert_eq!(source.wait().map_err(|failed| failed.error)?.as_slice()?, bytes);
    assert_eq!(target.wait().map_err(|failed| failed.error)?.as_slice()?, bytes);
    Ok(())
}

fn pinned_pool(context: &Context) -> Result<()> {
    let options = PinnedMemoryResourceOptions::default().with_max_size(64 << 20);
    let resource = PinnedMemoryResource::new(context, &options)?;
    attributes(resource.attributes())?;
    resource.trim_to(0)?;
    pinned_works(&resource)
}

fn hosts_own_pool(context: &Context) -> Result<()> {
    pinned_works(&PinnedMemoryResource::new(context, None)?)
}

fn pinned_pool_on_a_node(context: &Context) -> Result<()> {
    let options = PinnedMemoryResourceOptions::default().with_numa_id(0);
    pinned_works(&PinnedMemoryResource::new(context, &options)?)
}

fn pinned_pool_near(context: &Context) -> Result<()> {
    let options = PinnedMemoryResourceOptions::default().near(context.device())?;
    pinned_works(&PinnedMemoryResource::new(context, &options)?)
}

fn pinned_pool_shared(context: &Context) -> Result<()> {
    let options = PinnedMemoryResourceOptions::default().with_ipc_enabled(true);
    let resource = PinnedMemoryResource::new(context, &options)?;
    pinned_works(&resource)?;
    let (handle, uuid) = (resource.allocation_handle()?, resource.uuid().unwrap());
    let mapped = PinnedMemoryResource::from_allocation_handle(context, handle, None)?;
    assert_eq!(mapped.register(uuid)?, mapped);
    let again = PinnedMemoryResource::from_allocation_handle(context, handle, uuid)?;
    assert_eq!(again.register(uuid)?, mapped);
    Ok(())
}

fn pinned_pool_on_current_device(context: &Context) -> Result<()> {
    let options = PinnedMemoryResourceOptions::default();
    let made =
        context.with_current(|| PinnedMemoryResource::on_current_device(context.driver(), &options))??;
    pinned_works(&made)?;
    let anywhere = PinnedMemoryResource::on_current_device(context.driver(), &options)?;
    serves(&anywhere)
}

fn per_thread_memory(context: &Context) -> Result<()> {
    let resource = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?;
    let thread = || {
        let own = Stream::per_thread(context)?;
        let mut block = resource.allocate(LEN, &own)?;
        block.as_device_range().fill_bytes(&own, 9)?;
        Ok::<_, Error>(block)
    };
    // Dropped in a thread where its stream has no name, and used there before.
    let block = std::thread::scope(|scope| scope.spawn(thread).join()).expect("no panic")?;
    let stream = Stream::new(context)?;
    assert_eq!(block.to_vec(&stream)?, [9; LEN]);
    Ok(())
}

fn memory_by_address(context: &Context) -> Result<()> {
    by_address(&DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?)
}

fn by_address(resource: &impl MemoryResource) -> Result<()> {
    let address = resource.allocate_raw(LEN, None)?;
    // SAFETY: allocated above and not used.
    if let Err(error) = unsafe { resource.deallocate(address, LEN, None) } {
        // It is still there, and still known.
        // SAFETY: as above; the free before failed.
        unsafe { resource.deallocate(address, LEN, None) }?;
        return Err(error);
    }
    // SAFETY: refused, because it is freed already.
    let again = unsafe { resource.deallocate(address, LEN, None) };
    assert!(matches!(again, Err(Error::UnknownAddress { .. })));
    Ok(())
}

fn adaptors(context: &Context) -> Result<()> {
    adaptors_over(DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?)
}

fn adaptors_over(resource: impl MemoryResource) -> Result<()> {
    let tracking = TrackingAdaptor::new(resource, false);
    let statistics = TrackingAdaptor::new(tracking.clone(), false);
    let result = serves(&statistics);
    // Whatever failed: what is out of the books is out of the driver's, and nothing is out.
    assert!(tracking.outstanding_allocations().is_empty());
    assert_eq!((statistics.bytes().current, statistics.allocations().current), (0, 0));
    result
}

fn adaptors_beside_a_capture(context: &Context) -> Result<()> {
    let pool = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default())?;
    let tracking = TrackingAdaptor::new(pool, false);
    let resource = TrackingAdaptor::new(tracking.clone(), false);
    let stream = Stream::new(context)?;
    let result = resource.allocate(LEN, &stream).map(|block| {
        while_capturing(&stream, || {
            assert!(resource.allocate(LEN, &stream).is_err());
            drop(block);
            assert_eq!(tracking.bytes().current, LEN as u64);
        });
    });
    while context.driver().reclaim() > 0 {}
    assert_eq!((tracking.bytes().current, resource.bytes().current), (0, 0));
    result
}
