//! Buffers on their way back.

use cuda_mem_pool::cuda_mem_core::{self as core, Stream, Uses, forked};

use super::importer::ImportLink;
use super::last::Last;
use super::segment::Segment;
use super::wire::Release;
use super::words::Point;
use crate::error::Result;
use crate::import::Imported;

/// A received buffer whose last handle is gone.
pub(super) struct Returned {
    pub(super) sequence: u64,
    /// None once all uses are the segment's.
    pub(super) segment: Option<Imported<Segment>>,
    pub(super) uses: Uses,
    /// Those that it was handed on to.
    pub(super) last: Last,
    /// The stream that used it, if it was one.
    pub(super) stream: Option<Stream>,
    /// The release, once it is recorded.
    pub(super) release: Option<Release>,
}

impl Returned {
    /// One that could not be received, so that nobody has used it.
    pub(super) fn refused(release: Release) -> Self {
        Self {
            sequence: release.sequence,
            segment: None,
            uses: Uses::new(),
            last: Last::default(),
            stream: None,
            release: Some(release),
        }
    }

    /// Tries to give it back, and tells whether nothing is left to do.
    pub(super) fn is_sent(&mut self, link: &ImportLink) -> bool {
        let sent = link.is_over()
            || match self.send(link) {
                Ok(()) => true,
                // The exporter takes it all, soon.
                Err(error) => error.is_gone() || matches!(error, crate::Error::Broken),
            };
        if sent && !link.outlives(self) {
            self.absorb();
        }
        sent
    }

    /// All of it, for whoever waits for its uses.
    pub(super) fn take(&mut self) -> Self {
        Self {
            segment: self.segment.take(),
            uses: std::mem::take(&mut self.uses),
            last: std::mem::take(&mut self.last),
            stream: self.stream.take(),
            ..*self
        }
    }

    /// Whether nothing that used it runs any more. Work that its streams were given after the first question does not count.
    pub(super) fn has_passed(&mut self) -> bool {
        let have_passed = self.uses.have_passed().unwrap_or_else(|error| !may_run(&error));
        self.last.is_over() && have_passed
    }

    /// Lets go of the segment, whose end waits for all uses from here on.
    fn absorb(&mut self) {
        if let Some(segment) = self.segment.take() {
            segment.absorb(std::mem::take(&mut self.uses));
        }
    }

    fn send(&mut self, link: &ImportLink) -> Result<()> {
        let release = match self.release {
            Some(release) => release,
            None => self.record(link)?,
        };
        self.release = Some(release);
        link.send(release)
    }

    /// A fence behind everything that used it.
    fn record(&mut self, link: &ImportLink) -> Result<Release> {
        let sequence = self.sequence;
        if self.uses.is_empty() && self.last.is_empty() {
            return Ok(Release { sequence, line: 0, generation: 0 });
        }
        // Taken: once it failed, the stream may begin to capture while the background tries again.
        let own = self.stream.take().map(|stream| self.record_on(link, &stream));
        let Point { line, generation } = match own {
            Some(Ok(point)) => point,
            // It captures, or is another thread's.
            Some(Err(_)) | None => self.record_on(link, link.stream()?)?,
        };
        Ok(Release { sequence, line, generation })
    }

    fn record_on(&mut self, link: &ImportLink, stream: &Stream) -> Result<Point> {
        self.uses.order(stream)?;
        self.last.order(stream)?;
        link.words.record(stream)
    }
}

/// Whether uses that cannot be asked for, with this error, may run: before a capture has ended, in another thread's stream, or in one that
/// nobody may name any more. What a lost context had does not.
pub(super) fn may_run(error: &core::Error) -> bool {
    matches!(error, core::Error::Capturing { .. } | core::Error::WrongThread | core::Error::Disowned)
}

impl Drop for Returned {
    fn drop(&mut self) {
        // However it ends: nothing may be unmapped that a stream still uses.
        if !forked() {
            self.absorb();
        }
    }
}
