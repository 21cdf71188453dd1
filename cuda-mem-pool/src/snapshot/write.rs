//! Snapshots as pickles.

use std::io::{self, Write};

use super::pickle::Pickler;
use super::{Action, AllocatorSettings, Annotation, BlockInfo, Frames, SegmentInfo, Snapshot, TraceEntry};
use crate::statistics::PoolSize;

impl Snapshot {
    /// Writes the snapshot as a pickle of dictionaries, lists and plain values, in many small pieces: a file is best behind a
    /// [`BufWriter`](io::BufWriter). Beside the snapshot it takes memory for each stack of calls, 65,536 of them at most.
    ///
    /// # Errors
    ///
    /// The writer's; [`InvalidInput`](io::ErrorKind::InvalidInput) for a text of 4 GiB or more.
    pub fn write_pickle(&self, writer: impl Write) -> io::Result<()> {
        let mut segments: Vec<&SegmentInfo> = self.segments.iter().collect();
        segments.sort_by_key(|segment| segment.address);
        let mut pickler = Pickler::new(writer)?;
        let p = &mut pickler;
        p.dict()?;
        p.word("segments")?;
        p.list(segments, |p, segment| p.segment(segment))?;
        p.word("device_traces")?;
        p.list(&self.device_traces, |p, trace| p.list(trace, |p, entry| p.trace_entry(entry)))?;
        p.word("allocator_settings")?;
        p.settings(&self.allocator_settings)?;
        p.word("external_annotations")?;
        p.list(&self.external_annotations, |p, annotation| p.annotation(annotation))?;
        p.end_dict()?;
        pickler.finish()
    }
}

impl<W: Write> Pickler<W> {
    fn segment(&mut self, segment: &SegmentInfo) -> io::Result<()> {
        self.dict()?;
        self.uint_entry("device", segment.device.into())?;
        self.uint_entry("address", segment.address)?;
        self.uint_entry("total_size", segment.total_size)?;
        self.uint_entry("allocated_size", segment.allocated_size)?;
        self.uint_entry("active_size", segment.active_size)?;
        self.uint_entry("requested_size", segment.requested_size)?;
        self.uint_entry("stream", segment.stream)?;
        self.word("segment_type")?;
        self.word(match segment.segment_type {
            PoolSize::Small => "small",
            PoolSize::Large => "large",
        })?;
        self.word("segment_pool_id")?;
        self.pair(segment.segment_pool_id.0, segment.segment_pool_id.1)?;
        self.bool_entry("is_expandable", segment.is_expandable)?;
        self.frames(segment.frames.as_ref())?;
        self.word("blocks")?;
        self.list(&segment.blocks, Self::block)?;
        self.end_dict()
    }

    fn block(&mut self, block: &BlockInfo) -> io::Result<()> {
        self.dict()?;
        self.uint_entry("address", block.address)?;
        self.uint_entry("size", block.size)?;
        self.uint_entry("requested_size", block.requested_size)?;
        self.word("state")?;
        self.word(block.state.name())?;
        self.frames(block.frames.as_ref())?;
        self.end_dict()
    }

    fn trace_entry(&mut self, entry: &TraceEntry) -> io::Result<()> {
        self.dict()?;
        self.word("action")?;
        self.word(entry.action.name())?;
        self.uint_entry(if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.address)?;
        self.uint_entry("size", entry.size)?;
        self.uint_entry("stream", entry.stream)?;
        self.uint_entry("time_us", entry.time_us)?;
        self.word("compile_context")?;
        match &entry.compile_context {
            Some(context) => self.text(context)?,
            None => self.word("N/A")?,
        }
        self.word("user_metadata")?;
        match &entry.user_metadata {
            Some(metadata) => self.text(metadata)?,
            None => self.word("")?,
        }
        if entry.frames.is_some() {
            self.frames(entry.frames.as_ref())?;
        }
        self.end_dict()
    }

    fn frames(&mut self, frames: Option<&Frames>) -> io::Result<()> {
        self.word("frames")?;
        self.shared_list(frames.map_or(&[], |frames| frames), |p, frame| {
            p.dict()?;
            p.word("filename")?;
            p.text(&frame.filename)?;
            p.uint_entry("line", frame.line.into())?;
            p.word("name")?;
            p.text(&frame.name)?;
            p.end_dict()
        })
    }

    fn settings(&mut self, settings: &AllocatorSettings) -> io::Result<()> {
        self.dict()?;
        self.word("PYTORCH_CUDA_ALLOC_CONF")?;
        self.text(&settings.conf)?;
        self.word("max_split_size")?;
        match settings.max_split_size {
            Some(size) => self.uint(size)?,
            None => self.int(-1)?,
        }
        self.word("garbage_collection_threshold")?;
        self.float(settings.garbage_collection_threshold)?;
        self.bool_entry("expandable_segments", settings.expandable_segments)?;
        self.uint_entry("pinned_num_register_threads", settings.pinned_num_register_threads)?;
        self.bool_entry("release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc)?;
        self.bool_entry("pinned_use_cuda_host_register", settings.pinned_use_cuda_host_register)?;
        self.bool_entry("graph_capture_record_stream_reuse", settings.graph_capture_record_stream_reuse)?;
        self.word("roundup_power2_divisions")?;
        self.dict()?;
        for (power, divisions) in (0..u64::BITS).zip(&settings.roundup_power2_divisions) {
            self.text(&(1u64 << power).to_string())?;
            self.uint(*divisions)?;
        }
        self.end_dict()?;
        self.end_dict()
    }

    fn annotation(&mut self, annotation: &Annotation) -> io::Result<()> {
        self.dict()?;
        self.word("name")?;
        self.text(&annotation.name)?;
        self.word("stage")?;
        self.word(annotation.stage.name())?;
        self.uint_entry("device", annotation.device.into())?;
        self.uint_entry("time_us", annotation.time_us)?;
        self.end_dict()
    }

    fn uint_entry(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.word(key)?;
        self.uint(value)
    }

    fn bool_entry(&mut self, key: &'static str, value: bool) -> io::Result<()> {
        self.word(key)?;
        self.bool(value)
    }
}
