//! Who reaches memory, as types.

mod sealed {
    pub trait Sealed {}
}

/// Who reaches the memory that a resource gives.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{Accessibility, HostReachable, MemoryResource, PinnedMemoryResource, Result};
///
/// // Device memory does not compile here.
/// fn filled<R: MemoryResource<Access: HostReachable>>(resource: &R, stream: &Stream) -> Result<u8> {
///     let mut block = resource.allocate(4096, stream)?;
///     block.as_mut_slice()?.fill(7);
///     Ok(block.as_slice()?[4095])
/// }
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let pinned = PinnedMemoryResource::new(&context, None)?;
/// assert_eq!(filled(&pinned, &Stream::new(&context)?)?, 7);
/// assert!(<PinnedMemoryResource as MemoryResource>::Access::DEVICE);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub trait Accessibility: sealed::Sealed + Send + Sync + 'static {
    /// Whether the host does.
    const HOST: bool;
    /// Whether devices do.
    const DEVICE: bool;
}

/// Memory that the host reaches. [`Accessibility`] has an example.
pub trait HostReachable: Accessibility {}

/// Memory that devices reach. [`Accessibility`] has an example.
pub trait DeviceReachable: Accessibility {}

/// Devices alone reach the memory. [`Accessibility`] has an example.
#[derive(Debug, Clone, Copy)]
pub enum DeviceAccessible {}

/// Host and devices reach the memory. [`Accessibility`] has an example.
#[derive(Debug, Clone, Copy)]
pub enum HostDeviceAccessible {}

impl sealed::Sealed for DeviceAccessible {}
impl Accessibility for DeviceAccessible {
    const HOST: bool = false;
    const DEVICE: bool = true;
}
impl DeviceReachable for DeviceAccessible {}

impl sealed::Sealed for HostDeviceAccessible {}
impl Accessibility for HostDeviceAccessible {
    const HOST: bool = true;
    const DEVICE: bool = true;
}
impl DeviceReachable for HostDeviceAccessible {}
impl HostReachable for HostDeviceAccessible {}
