//! An exporter as a list of steps has it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Context, Stream};

use super::{ExportLink, Exporter};
use crate::error::Result;
use crate::primitive::lock;
use crate::shared::buffer::Share;
use crate::shared::reaper::Watched;
use crate::transport::{Connection, Deadline};

/// An exporter, and what the thread that looks after peers would do for it, when it is asked to.
pub(in crate::shared) struct TestExporter(Exporter);

impl TestExporter {
    /// Its importer is in this process, which it takes for another one if told so.
    pub(in crate::shared) fn new(
        context: &Context,
        connection: Connection,
        is_to_another: bool,
        deadline: Deadline,
    ) -> Result<Self> {
        let mut exporter = Exporter::unwatched(context, connection, deadline)?;
        // Nobody else knows it yet.
        if let Some(link) = Arc::get_mut(&mut exporter.link) {
            link.is_to_another = is_to_another;
        }
        Ok(Self(exporter))
    }

    fn link(&self) -> &Arc<ExportLink> {
        &self.0.link
    }

    pub(in crate::shared) fn hand_over(&self, share: Share, stream: &Stream) -> Result<u64> {
        self.0.hand_over(share, stream, Duration::ZERO)
    }

    /// One turn of the thread.
    pub(in crate::shared) fn serve(&self) -> Result<()> {
        Arc::clone(self.link()).service(&mut Vec::new())
    }

    /// Whether the thread sleeps behind such a turn until somebody wakes it.
    pub(in crate::shared) fn lies_down(&self) -> bool {
        self.link().may_sleep()
    }

    pub(in crate::shared) fn is_called(&self) -> bool {
        // A packet is never empty; the end of the connection is no bytes.
        rustix::io::ioctl_fionread(&self.link().connection).is_ok_and(|bytes| bytes > 0)
    }

    /// What the importer has.
    pub(in crate::shared) fn leases(&self) -> BTreeSet<u64> {
        lock(&self.link().leases).open.keys().copied().collect()
    }

    /// The importer is gone.
    pub(in crate::shared) fn end(&self) {
        Arc::clone(self.link()).end();
    }
}
