//! What every resource over a driver pool has, written once.

/// Writes them, for a handle with a field `inner` that has a field `pool`.
macro_rules! pool_members {
    () => {
        /// The attributes of the pool, some of which can be set. Makes no driver call by itself.
        #[must_use]
        pub fn attributes(&self) -> $crate::Attributes<'_> {
            $crate::Attributes::new(&self.inner.pool)
        }

        /// Gives memory back to the system until no more than `bytes_to_keep` bytes are held, or all that is left is in use.
        /// What was freed but not synchronised with counts as in use. IPC-enabled pools may ignore it
        /// ([`ThresholdEffect`](crate::ThresholdEffect)).
        ///
        /// Wraps [`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
        ///
        /// # Capture
        ///
        /// May be called while streams capture.
        ///
        /// # Errors
        ///
        /// [`Error::Mapped`](crate::Error::Mapped) for another process's pool, or the driver's.
        pub fn trim_to(&self, bytes_to_keep: usize) -> $crate::Result<$crate::ThresholdEffect> {
            self.inner.pool.owners(self.inner.pool.pool().trim_to(bytes_to_keep))?;
            Ok(self.inner.pool.effect())
        }

        /// The driver's handle of the pool, a `CUmemoryPool`. It is valid while a handle to this resource or memory of it lives.
        #[must_use]
        pub fn handle(&self) -> *mut std::ffi::c_void {
            self.inner.pool.pool().as_raw()
        }

        /// Whether the pool is this resource's own, and is destroyed with it.
        #[must_use]
        pub fn is_handle_owned(&self) -> bool {
            self.inner.pool.pool().is_owned()
        }

        /// Lets go of the pool. If it is owned, it is destroyed when the last other handle and the last allocation are gone; if
        /// it is not, nothing happens to it.
        pub fn close(self) {}
    };
}

/// Writes those that have to do with other processes.
macro_rules! ipc_members {
    () => {
        /// Whether the pool is, or comes from, one that other processes may be given.
        #[must_use]
        pub fn is_ipc_enabled(&self) -> bool {
            self.inner.pool.is_ipc_enabled()
        }

        /// Whether it is a mapping of another process's pool, from which nothing can be allocated here.
        #[must_use]
        pub fn is_mapped(&self) -> bool {
            self.inner.pool.is_mapped()
        }

        /// The name of an IPC-enabled pool, the same in every process that knows it. None for others, and for one that was
        /// imported from a bare descriptor and not registered yet.
        #[must_use]
        pub fn uuid(&self) -> Option<$crate::Uuid> {
            self.inner.pool.uuid()
        }

        /// What other processes import the pool from. It is exported once, and stays the resource's.
        ///
        /// Wraps [`cuMemPoolExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
        ///
        /// # Capture
        ///
        /// May be called while streams capture.
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled), [`Error::Mapped`](crate::Error::Mapped) for another process's
        /// pool, or the driver's.
        pub fn allocation_handle(&self) -> $crate::Result<&$crate::IpcAllocationHandle> {
            self.inner.pool.allocation_handle()
        }

        /// Registers this resource under a UUID, and returns the one to use: one that was registered there before and is still
        /// alive, else this one. The registry keeps nothing alive. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled); [`Error::OtherKind`](crate::Error::OtherKind) if a resource of
        /// another kind is registered there; [`Error::OtherUuid`](crate::Error::OtherUuid) if nothing is, and the pool has another UUID;
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn register(&self, uuid: $crate::Uuid) -> $crate::Result<Self> {
            if !self.is_ipc_enabled() {
                return Err($crate::Error::NotIpcEnabled);
            }
            $crate::ipc::Registry::register(uuid, self.clone())
        }

        /// The resource that is registered under a UUID. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotRegistered`](crate::Error::NotRegistered), [`Error::OtherKind`](crate::Error::OtherKind);
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn from_registry(uuid: $crate::Uuid) -> $crate::Result<Self> {
            $crate::ipc::Registry::find(uuid)
        }
    };
}

/// Two handles are equal if they are handles to the same resource.
macro_rules! same_handle {
    ($resource:ident) => {
        impl PartialEq for $resource {
            /// Whether both are handles to the same resource.
            fn eq(&self, other: &Self) -> bool {
                std::sync::Arc::ptr_eq(&self.inner, &other.inner)
            }
        }

        impl Eq for $resource {}
    };
}

/// Lets a resource be found by its UUID, under its kind of entry.
macro_rules! registered {
    ($resource:ident, $inner:ident, $kind:ident) => {
        impl $crate::ipc::Registered for $resource {
            type Inner = $inner;
            const KIND: &'static str = stringify!($resource);

            fn upgrade(inner: &std::sync::Weak<$inner>) -> Option<Self> {
                inner.upgrade().map(|inner| Self { inner })
            }

            fn downgrade(&self) -> std::sync::Weak<$inner> {
                std::sync::Arc::downgrade(&self.inner)
            }

            fn take_uuid(&self, uuid: $crate::Uuid) -> $crate::Result<()> {
                self.inner.pool.take_uuid(uuid)
            }

            fn entry(entry: &$crate::ipc::Entry) -> Option<&std::sync::Weak<$inner>> {
                match entry {
                    $crate::ipc::Entry::$kind(inner) => Some(inner),
                    _ => None,
                }
            }

            fn into_entry(inner: std::sync::Weak<$inner>) -> $crate::ipc::Entry {
                $crate::ipc::Entry::$kind(inner)
            }
        }
    };
}

pub(super) use {ipc_members, pool_members, registered, same_handle};
