//! An importer as a list of steps has it, in [`hostile`](crate::shared::hostile).

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::Context;
use cuda_mem_pool::cuda_mem_core::host::SharedMapping;

use super::{ImportLink, Importer};
use crate::error::Result;
use crate::shared::options::AheadLimit;
use crate::shared::reaper::Watched;
use crate::shared::received::ReceivedBuffer;
use crate::shared::{lock, ring};
use crate::transport::{Connection, Deadline};

/// An importer, and what the thread that looks after peers would do for it, when it is asked to.
pub(in crate::shared) struct Taker(Importer);

impl Taker {
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
        self.link().ring.mapping().clone()
    }

    /// As [`Importer::recv`] without waiting, but that it listens for messages however lately it has done so: no clock decides.
    pub(in crate::shared) fn receive(&self) -> Result<ReceivedBuffer> {
        let _ = self.link().look(Duration::ZERO.into(), false);
        self.link().take()
    }

    /// As whoever found nothing does before it sleeps. It is awake again behind [`rises`](Self::rises).
    pub(in crate::shared) fn lies_down(&self) -> bool {
        self.link().lies_down()
    }

    pub(in crate::shared) fn rises(&self) {
        ring::awake(&self.link().ring);
    }

    pub(in crate::shared) fn is_called(&self) -> bool {
        self.link().connection.has_message()
    }

    /// One turn of the thread.
    pub(in crate::shared) fn serve(&self) -> Result<()> {
        Arc::clone(self.link()).service()
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
