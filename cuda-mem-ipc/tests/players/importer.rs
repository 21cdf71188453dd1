//! An importer as a list of steps has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::Context;
use cuda_mem_pool::cuda_mem_core::host::SharedMapping;

use super::{ImportLink, Importer};
use crate::error::Result;
use crate::primitive::lock;
use crate::shared::options::AheadLimit;
use crate::shared::reaper::Watched;
use crate::shared::received::ReceivedBuffer;
use crate::shared::ring;
use crate::transport::{Connection, Deadline};

/// An importer, and what the thread that looks after peers would do for it, when it is asked to.
pub(in crate::shared) struct TestImporter(Importer);

impl TestImporter {
    pub(in crate::shared) fn new(
        context: &Context,
        connection: Connection,
        deadline: Deadline,
    ) -> Result<Self> {
        Ok(Self(Importer::unwatched(context, connection, AheadLimit::NONE, deadline)?))
    }

    fn link(&self) -> &Arc<ImportLink> {
        &self.0.link
    }

    /// What both processes have.
    pub(in crate::shared) fn memory(&self) -> SharedMapping {
        self.link().ring.mapping.clone()
    }

    /// As [`Importer::recv`] without waiting.
    pub(in crate::shared) fn receive(&self) -> Result<ReceivedBuffer> {
        self.link().look(Duration::ZERO.into(), Duration::ZERO);
        self.link().take()
    }

    /// Has the system refuse to receive a message, or receive again.
    #[cfg(test)]
    pub(in crate::shared) fn refuse_messages(&self, are_refused: bool) {
        let reason = are_refused.then_some(rustix::io::Errno::NOMEM);
        crate::transport::refuse(&self.link().connection, reason);
    }

    /// It hears what it does not understand.
    #[cfg(test)]
    pub(in crate::shared) fn break_off(&self) {
        let _ = self.link().breaks("a test has it break off");
    }

    /// What whoever found nothing sleeps on; none if there is something.
    pub(in crate::shared) fn lies_down(&self) -> Option<u32> {
        let position = lock(&self.link().entries).position();
        ring::prepare_sleep(&self.link().ring, position)
    }

    /// Whether whoever sleeps since then was woken.
    pub(in crate::shared) fn is_woken(&self, since: u32) -> bool {
        ring::Cells::rung(&self.link().ring) != since
    }

    /// One turn of the thread.
    pub(in crate::shared) fn serve(&self) -> Result<()> {
        Arc::clone(self.link()).service(&mut Vec::new())
    }

    /// Whether releases have found no room.
    pub(in crate::shared) fn has_unsent(&self) -> bool {
        self.link().unsent.load(Ordering::SeqCst) > 0
    }

    /// How many segments it has.
    pub(in crate::shared) fn segments(&self) -> usize {
        lock(&self.link().segments).len()
    }

    /// The exporter is gone.
    pub(in crate::shared) fn end(&self) {
        Arc::clone(self.link()).end();
    }
}
