//! Memory and events of one process in another: the driver's handles, one function a call. What the `cuda-mem-ipc` crate builds
//! its shared pools on.
//!
//! | memory | made for it as | travels as | opened as |
//! |---|---|---|---|
//! | device memory of `cuMemAlloc` | [`DeviceAllocation`] | [`MemoryHandle`], any channel | [`OpenedMemory`] |
//! | device memory of `cuMemCreate` | [`ShareableMemory`](crate::vmm::ShareableMemory) | a descriptor, or a [`FabricHandle`](crate::vmm::FabricHandle) over any channel | [`ImportedMapping`], or [`PhysicalMemory`](crate::vmm::PhysicalMemory) to be mapped |
//! | blocks of a pool, on a device or a node of the host | a [`MemoryPool`](crate::raw_pool::MemoryPool) that is `shareable` | a descriptor, and a [`PointerExport`](crate::raw_pool::PointerExport) a block over any channel | [`ImportedBlock`](crate::raw_pool::ImportedBlock) |
//! | plain host memory | [`SharedMapping`](crate::host::SharedMapping) | a descriptor | [`SharedMapping`](crate::host::SharedMapping) |
//!
//! | order | made as | travels as | opened as |
//! |---|---|---|---|
//! | events | [`InterprocessEvent`] | [`EventHandle`], any channel | [`OpenedEvent`] |
//! | words | a line of [`SharedWords`] | a descriptor, and a number a fence | [`FenceLine::fence`](crate::FenceLine::fence) |
//!
//! What is opened is closed exactly once, after the work that used it. A process opens what others export, never its own: the
//! driver refuses most of that (code 201). None of the handles says who made it: they are taken from processes that are trusted
//! with the memory.
//!
//! Legacy handles name whole allocations. A part of one is a base, an offset and a length here, and the length is checked
//! against what the driver has opened. Who gets a handle gets all of the allocation.

mod event;
mod mapping;
mod memory;

pub use crate::fence::{SharedWords, poison_word};
pub use event::{EventHandle, InterprocessEvent, OpenedEvent};
pub use mapping::ImportedMapping;
pub use memory::{DeviceAllocation, MemoryHandle, OpenedMemory};
