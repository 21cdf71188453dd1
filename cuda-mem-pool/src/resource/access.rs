//! Who reaches memory, as types.

mod sealed {
    pub trait Sealed {}
}

/// Who reaches the memory that a resource gives.
pub trait Accessibility: sealed::Sealed + Send + Sync + 'static {
    /// Whether the host does.
    const HOST: bool;
    /// Whether devices do.
    const DEVICE: bool;
}

/// Memory that the host reaches.
pub trait HostReachable: Accessibility {}

/// Memory that devices reach.
pub trait DeviceReachable: Accessibility {}

/// Devices alone reach the memory.
#[derive(Debug, Clone, Copy)]
pub enum DeviceAccessible {}

/// Host and devices reach the memory.
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
