//! Who else is let in: peers, and mappings of pools as another process has them, by name.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::{AsRawFd, BorrowedFd};

use cuda_mem_core::Context;
use cuda_mem_pool::{DeviceMemoryResource, Error, MemoryResource, PinnedMemoryResource, Result, Uuid};
use proptest::sample::Index;

use super::kinds::Resource;
use super::world::World;

/// What both kinds have that can be shared.
pub(super) trait Shareable: MemoryResource + PartialEq + Debug {
    /// The other kind.
    type Other: Shareable;

    fn handle_to_share(&self) -> Result<BorrowedFd<'_>>;
    fn import(context: &Context, handle: BorrowedFd<'_>, uuid: Option<Uuid>) -> Result<Self>;
    fn name(&self) -> Option<Uuid>;
    fn register_as(&self, name: Uuid) -> Result<Self>;
    fn find(name: Uuid) -> Result<Self>;
    fn reaches_as_a_mapping(&self) -> bool;
    fn into_resource(self) -> Resource;
}

macro_rules! shareable {
    ($type:ident, $other:ident, $variant:ident, |$mapped:ident| $reaches:expr) => {
        impl Shareable for $type {
            type Other = $other;

            fn handle_to_share(&self) -> Result<BorrowedFd<'_>> {
                self.allocation_handle()
            }
            fn import(context: &Context, handle: BorrowedFd<'_>, uuid: Option<Uuid>) -> Result<Self> {
                Self::from_allocation_handle(context, handle, uuid)
            }
            fn name(&self) -> Option<Uuid> {
                self.uuid()
            }
            fn register_as(&self, name: Uuid) -> Result<Self> {
                self.register(name)
            }
            fn find(name: Uuid) -> Result<Self> {
                Self::from_registry(name)
            }
            fn reaches_as_a_mapping(&self) -> bool {
                let $mapped = self;
                $mapped.is_mapped() && $mapped.is_ipc_enabled() && $mapped.is_handle_owned() && $reaches
            }
            fn into_resource(self) -> Resource {
                Resource::$variant(self)
            }
        }
    };
}

shareable!(DeviceMemoryResource, PinnedMemoryResource, Device, |mapped| {
    mapped.peer_accessible_by().unwrap().is_empty()
});
shareable!(PinnedMemoryResource, DeviceMemoryResource, Pinned, |mapped| {
    mapped.is_device_accessible().unwrap() && mapped.numa_id() == -1
});

/// Who is registered under the name of a pool. Mappings of one pool may have one handle, so each has a number.
#[derive(Clone, Copy)]
enum Registered {
    Itself,
    Mapping(usize),
}

/// What is registered, and the mappings that were made.
#[derive(Default)]
pub(super) struct Names {
    registered: BTreeMap<Uuid, Registered>,
    mappings: Vec<(usize, Resource)>,
    made: usize,
}

impl Names {
    /// Imports a resource, if it is for that, and registers both it and the mapping, of which the first is the one to be found
    /// unless one was registered before and is still there.
    pub(super) fn share<R: Shareable>(&mut self, resource: &R, shared: bool, bare: bool, register_own: bool) {
        let unknown = Uuid::new_v4();
        assert!(matches!(R::find(unknown), Err(Error::NotRegistered { uuid }) if uuid == unknown));
        if !shared {
            assert_eq!(resource.name(), None);
            assert!(matches!(resource.handle_to_share(), Err(Error::NotIpcEnabled)));
            assert!(matches!(resource.register_as(unknown), Err(Error::NotIpcEnabled)));
            return;
        }
        let handle = resource.handle_to_share().unwrap();
        assert_eq!(resource.handle_to_share().unwrap().as_raw_fd(), handle.as_raw_fd());
        let name = resource.name().unwrap();
        let context = resource.resource_context().context();
        let mapped = R::import(context, handle, (!bare).then_some(name)).unwrap();
        assert_eq!(mapped.name(), (!bare).then_some(name));
        assert!(mapped.reaches_as_a_mapping());
        assert!(matches!(mapped.handle_to_share(), Err(Error::Mapped)));
        assert!(matches!(mapped.allocate(1, None).map(drop), Err(Error::Mapped)));

        let (new, first, second) = match register_own {
            true => (Registered::Itself, resource, &mapped),
            false => (Registered::Mapping(self.made), &mapped, resource),
        };
        let before = self.registered.get(&name).and_then(|before| match before {
            Registered::Itself => Some((*before, resource.clone().into_resource())),
            Registered::Mapping(number) => Some((*before, self.mapping(*number)?.clone())),
        });
        let (registered, expected) = before.unwrap_or_else(|| (new, first.clone().into_resource()));
        let known = first.register_as(name).unwrap();
        assert_eq!(known.clone().into_resource(), expected);
        assert_eq!(second.register_as(name).unwrap(), known);
        assert_eq!(known.name(), Some(name));
        assert_eq!(R::find(name).unwrap(), known);
        assert!(matches!(R::Other::find(name), Err(Error::OtherKind { uuid, .. }) if uuid == name));
        self.registered.insert(name, registered);

        let mapped = mapped.into_resource();
        assert!(matches!(mapped.trim_to(0), Err(Error::Mapped)));
        assert!(matches!(mapped.attributes().used_mem_current(), Err(Error::Mapped)));
        assert!(matches!(mapped.attributes().set_release_threshold(0), Err(Error::Mapped)));
        self.mappings.push((self.made, mapped));
        self.made += 1;
    }

    fn mapping(&self, number: usize) -> Option<&Resource> {
        self.mappings.iter().find(|(found, _)| *found == number).map(|(_, mapping)| mapping)
    }

    pub(super) fn drop_mapping(&mut self, which: Index) {
        if !self.mappings.is_empty() {
            self.mappings.swap_remove(which.index(self.mappings.len()));
        }
    }
}

impl World {
    pub(super) fn share(&mut self, slot: Index, bare: bool, register_own: bool) {
        let Some(resource) = self.resource(slot) else { return };
        let shared = self.pool_of(&resource).config.shared;
        match &resource {
            Resource::Device(device) => self.names.share(device, shared, bare, register_own),
            Resource::Pinned(pinned) => self.names.share(pinned, shared, bare, register_own),
        }
    }

    pub(super) fn set_peers(&mut self, slot: Index, wanted: [bool; 2]) {
        let Some(Resource::Device(resource)) = self.resource(slot) else { return };
        // Work of those that go out must be over.
        self.synchronise();
        let devices = resource.resource_context().context().driver().devices().unwrap();
        let wanted = devices.into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
        let wanted = wanted.map(|(device, _)| device).collect::<Vec<_>>();
        let others = wanted.iter().copied().filter(|device| *device != resource.device()).collect::<Vec<_>>();
        let result = resource.set_peer_accessible_by(&wanted);
        let pool = self.pools.get_mut(&resource.handle().addr()).unwrap();
        if !self.machine.peers && !others.is_empty() {
            assert!(matches!(result, Err(Error::NoPeerAccess { device, .. }) if device == others[0]));
        } else {
            result.unwrap();
            pool.peers = others.iter().map(|device| device.as_raw() as usize).collect();
        }
        let found = resource.peer_accessible_by().unwrap();
        assert!(found.iter().map(|device| device.as_raw() as usize).eq(pool.peers.iter().copied()));
    }
}
