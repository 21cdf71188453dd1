//! The two resources as one.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::{
    Attributes, DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource,
    PinnedMemoryResource, PinnedMemoryResourceOptions, Result,
};
use proptest::sample::Index;

use super::memory::Memory;
use crate::machines::Machine;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Pinned,
}

/// A resource that somebody asks for. What its kind has no option for is not looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Config {
    pub(super) kind: Kind,
    /// Its own pool, or the driver's.
    pub(super) owned: bool,
    pub(super) shared: bool,
    pub(super) max_size: usize,
    pub(super) node: Option<i32>,
    pub(super) device: Index,
}

impl Config {
    /// With nothing but what its kind has an option for.
    pub(super) fn plain(self) -> Self {
        let Self { kind, owned, .. } = self;
        Self {
            shared: self.shared && owned,
            max_size: if owned { self.max_size } else { 0 },
            node: self.node.filter(|_| owned && kind != Kind::Device),
            ..self
        }
    }

    /// Whether the machine has such a pool. If not, the error is the one to be expected.
    pub(super) fn is_there(&self, machine: Machine, result: &Result<Resource>) -> bool {
        let needs_host_pools = match self.kind {
            Kind::Device => false,
            Kind::Pinned => self.node.is_none() && !self.shared,
        };
        if needs_host_pools && !machine.has_host_pools() {
            assert!(matches!(result, Err(Error::NeedsDriver { needs: 13000, has: 12060, .. })), "{result:?}");
            return false;
        }
        if let Some(node) = self.node.filter(|node| *node >= machine.numa_nodes) {
            let named = |numa_id: i32, nodes: &[i32]| {
                numa_id == node && nodes == (0..machine.numa_nodes).collect::<Vec<_>>()
            };
            assert!(
                matches!(result, Err(Error::NoSuchNumaNode { numa_id, nodes }) if named(*numa_id, nodes)),
                "{result:?}"
            );
            return false;
        }
        true
    }

    pub(super) fn open(&self, context: &Context) -> Result<Resource> {
        Ok(match self.kind {
            Kind::Device => {
                let options = DeviceMemoryResourceOptions::default()
                    .with_ipc_enabled(self.shared)
                    .with_max_size(self.max_size);
                Resource::Device(DeviceMemoryResource::new(context, self.owned.then_some(&options))?)
            }
            Kind::Pinned => {
                let options = PinnedMemoryResourceOptions::default()
                    .with_ipc_enabled(self.shared)
                    .with_max_size(self.max_size)
                    .with_numa_id(self.node);
                Resource::Pinned(PinnedMemoryResource::new(context, self.owned.then_some(&options))?)
            }
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Resource {
    Device(DeviceMemoryResource),
    Pinned(PinnedMemoryResource),
}

macro_rules! each {
    ($resource:expr, $name:ident => $body:expr) => {
        match $resource {
            Resource::Device($name) => $body,
            Resource::Pinned($name) => $body,
        }
    };
}

impl Resource {
    /// The pool: no two of a simulator have one handle, whatever their lives.
    pub(super) fn pool(&self) -> usize {
        each!(self, resource => resource.handle().addr())
    }

    pub(super) fn attributes(&self) -> Attributes<'_> {
        each!(self, resource => resource.attributes())
    }

    pub(super) fn trim_to(&self, keep: usize) -> Result<()> {
        each!(self, resource => resource.trim_to(keep))
    }

    pub(super) fn is_handle_owned(&self) -> bool {
        each!(self, resource => resource.is_handle_owned())
    }

    pub(super) fn close(self) {
        each!(self, resource => resource.close());
    }

    /// The stream of what is allocated without one.
    pub(super) fn own_stream(&self) -> Stream {
        each!(self, resource => resource.resource_context().stream()).unwrap().clone()
    }

    pub(super) fn allocate(&self, bytes: usize, stream: Option<&Stream>) -> Result<Memory> {
        Ok(match self {
            Self::Device(resource) => Memory::OfDevice(resource.allocate(bytes, stream)?),
            Self::Pinned(resource) => Memory::OfBoth(resource.allocate(bytes, stream)?),
        })
    }

    pub(super) fn allocate_raw(&self, bytes: usize, stream: Option<&Stream>) -> Result<Memory> {
        let address = each!(self, resource => resource.allocate_raw(bytes, stream))?;
        let home = stream.cloned().unwrap_or_else(|| self.own_stream());
        Ok(Memory::Raw { resource: self.clone(), address, bytes, last: home.clone(), home })
    }

    /// The model's own promise: nothing uses the memory behind this point of the stream.
    pub(super) fn deallocate(&self, address: u64, bytes: usize, stream: Option<&Stream>) -> Result<()> {
        // SAFETY: allocated with this size, and the stream waits for the last use; addresses that are not out are refused.
        each!(self, resource => unsafe { resource.deallocate(address, bytes, stream) })
    }
}
