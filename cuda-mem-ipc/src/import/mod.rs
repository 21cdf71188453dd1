//! What this process has imported, once however often it is asked for.

mod table;

use std::sync::Arc as StdArc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Device, Driver, forked};

use crate::background::DROPS;
use crate::primitive::Arc;
use table::Table;

/// Names memory of another process: the device here that it is imported for, and bytes that say what it is.
///
/// The bytes are the exporter's: those of a handle, or the identity of the process with the number and generation of a segment.
/// The same bytes must mean the same memory for as long as it is imported. [`Imports`] has an example.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImportKey {
    driver: Driver,
    device: i32,
    identity: Box<[u8]>,
}

impl ImportKey {
    /// The name of memory that is imported for `device`.
    #[must_use]
    pub fn new(device: Device, identity: &[u8]) -> Self {
        Self { driver: device.driver(), device: device.as_raw(), identity: identity.into() }
    }
}

/// The imports of a process: memory that is asked for by the same name is imported once, and given back with its last user.
///
/// No lock is held during calls of the driver; only calls for the very same memory wait for each other. Memory that is being
/// released is never handed out: a call that asks for it waits until it is released, and imports it anew. Some drivers would give
/// both imports the same address, and the first one's release would take it from the second.
///
/// ```
/// use std::os::fd::AsFd;
/// use std::time::Duration;
///
/// use cuda_mem_ipc::{ImportKey, Imports};
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Driver};
/// use core::ipc::ImportedMapping;
/// use core::vmm::{self, CreateOptions, ShareableMemory};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let device = driver.device(0)?;
/// let page = vmm::granularity(device)?;
/// let memory = ShareableMemory::create(device, page, &CreateOptions::supported_by(device)?)?;
/// let descriptor = memory.export_posix_fd()?;
///
/// let imports = Imports::new();
/// let import = || {
///     imports.import(&ImportKey::new(device, b"process 17, segment 4"), Duration::from_secs(1), |departure| {
///         let mut mapping = ImportedMapping::import_posix_fd(device, descriptor.as_fd(), page, &[device])?;
///         mapping.drop_after_unmap(departure);
///         Ok::<_, core::Error>(mapping)
///     })
/// };
/// let (one, two) = (import()?, import()?);
/// assert_eq!(one.as_raw(), two.as_raw());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Imports<V> {
    table: Arc<Table<ImportKey, V>>,
}

/// Says that memory is gone when it is dropped: the owner of the memory keeps it until the driver has let go. [`Imports`] has an example.
#[must_use = "dropped, it says that the memory is gone"]
pub struct Departure {
    _guard: Box<dyn Send + Sync>,
}

/// Why nothing was imported. [`Imports::import`] says when.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError<E> {
    /// The import itself failed.
    #[error(transparent)]
    Failed(E),
    /// Another import or release of the same memory did not end in time.
    #[error("another import or release of the same memory did not end within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The process was forked: what its parent has imported is not there.
    #[error("this process was forked after memory was imported: start the child with exec")]
    Forked,
}

impl<V: Send + Sync + 'static> Imports<V> {
    /// No imports.
    #[must_use]
    pub fn new() -> Self {
        Self { table: Arc::new(Table::new()) }
    }

    /// A share in the memory of a name: what others have imported already, or what `import` does, which is called without a lock. The last
    /// share that is dropped gives the memory back.
    ///
    /// The [`Departure`] that `import` gets has to live until the driver has let go of the memory; if it is dropped with an
    /// error, nothing was imported. `import` must not ask for the same name.
    ///
    /// # Errors
    ///
    /// [`ImportError::Failed`] with the error of `import`, [`ImportError::Timeout`] if another import or release of
    /// the same memory takes longer than `limit`, [`ImportError::Forked`].
    pub fn import<E>(
        &self,
        key: &ImportKey,
        limit: Duration,
        import: impl FnOnce(Departure) -> Result<V, E>,
    ) -> Result<StdArc<V>, ImportError<E>> {
        if forked() {
            return Err(ImportError::Forked);
        }
        // A release that waits for a capture to end is tried again, elsewhere: who asks may have a lock that the program waits for there.
        let driver = key.driver;
        let nudge = || {
            DROPS.run(move || {
                driver.reclaim();
            });
        };
        let import = |guard| import(Departure { _guard: guard });
        Table::import(&self.table, key, limit, nudge, import)
    }

    /// How many names are imported, or on their way in or out.
    #[must_use]
    pub fn len(&self) -> usize {
        if forked() { 0 } else { self.table.len() }
    }
}

impl<V: Send + Sync + 'static> Default for Imports<V> {
    fn default() -> Self {
        Self::new()
    }
}

crate::impl_debug!([V] Imports<V>);

crate::impl_debug!(Departure);
