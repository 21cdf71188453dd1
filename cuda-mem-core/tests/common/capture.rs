//! Captures of others: begun and ended through the raw table, as PyTorch and CUDA's runtime do.

use std::ptr;

use cuda_mem_core::sys::{CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode, Table};
use cuda_mem_core::{Context, Stream};

pub(crate) const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
pub(crate) const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
pub(crate) const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A stream that captures.
pub(crate) struct Capture {
    table: &'static Table,
    stream: Stream,
    open: bool,
}

impl Capture {
    pub(crate) fn begin(stream: &Stream, mode: CUstreamCaptureMode) -> Self {
        let table = stream.context().driver().table();
        let begin = table.cuStreamBeginCapture().expect("cuStreamBeginCapture");
        // SAFETY: a live stream.
        let result = unsafe { begin(raw(stream), mode) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        Self { table, stream: stream.clone(), open: true }
    }

    /// Ends it: the graph, or the code that says how the capture was lost.
    pub(crate) fn end(mut self) -> Result<Graph, CUresult> {
        self.open = false;
        let end = self.table.cuStreamEndCapture().expect("cuStreamEndCapture");
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: a live stream that captures; one handle to write.
        let result = unsafe { end(raw(&self.stream), &mut graph) };
        if result == CUresult::CUDA_SUCCESS { Ok(Graph { table: self.table, graph }) } else { Err(result) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            // Of a test that failed: the stream must not go on capturing in the tests after it.
            let end = self.table.cuStreamEndCapture().expect("cuStreamEndCapture");
            let mut graph: CUgraph = ptr::null_mut();
            // SAFETY: as in `end`; what graph there is stays behind.
            let _ = unsafe { end(raw(&self.stream), &mut graph) };
        }
    }
}

/// What was captured.
pub(crate) struct Graph {
    table: &'static Table,
    graph: CUgraph,
}

impl Graph {
    /// How many nodes it has.
    pub(crate) fn len(&self) -> usize {
        let get = self.table.cuGraphGetNodes().expect("cuGraphGetNodes");
        let mut count = 0;
        // SAFETY: a live graph; one number to write, and no nodes.
        let result = unsafe { get(self.graph, ptr::null_mut(), &mut count) };
        assert_eq!(result, CUresult::CUDA_SUCCESS);
        count
    }

    /// Runs it once and waits.
    ///
    /// # Safety
    ///
    /// What it uses is still there.
    pub(crate) unsafe fn run(&self, stream: &Stream) {
        // SAFETY: the caller's promise.
        unsafe { self.instantiate(stream.context()).launch(stream) };
    }

    /// What can be launched many times.
    pub(crate) fn instantiate(&self, context: &Context) -> Launchable {
        let instantiate = self.table.cuGraphInstantiateWithFlags().expect("cuGraphInstantiateWithFlags");
        let mut exec: CUgraphExec = ptr::null_mut();
        // SAFETY: a live graph; one handle to write; the context is current.
        let made = context.with_current(|| unsafe { instantiate(&mut exec, self.graph, 0) });
        assert_eq!(made.expect("a current context"), CUresult::CUDA_SUCCESS);
        Launchable { table: self.table, exec }
    }
}

/// A graph as it was instantiated.
pub(crate) struct Launchable {
    table: &'static Table,
    exec: CUgraphExec,
}

impl Launchable {
    /// Launches it and waits.
    ///
    /// # Safety
    ///
    /// What it uses is still there.
    pub(crate) unsafe fn launch(&self, stream: &Stream) {
        let launch = self.table.cuGraphLaunch().expect("cuGraphLaunch");
        // SAFETY: a live executable graph and stream; the caller answers for what it uses.
        assert_eq!(unsafe { launch(self.exec, raw(stream)) }, CUresult::CUDA_SUCCESS);
        stream.synchronize().expect("the graph to run");
    }
}

impl Drop for Launchable {
    fn drop(&mut self) {
        let destroy = self.table.cuGraphExecDestroy().expect("cuGraphExecDestroy");
        // SAFETY: made once, destroyed once.
        let _ = unsafe { destroy(self.exec) };
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroy = self.table.cuGraphDestroy().expect("cuGraphDestroy");
        // SAFETY: it came from the end of a capture, and is destroyed once.
        let _ = unsafe { destroy(self.graph) };
    }
}

/// The calling thread's capture mode, as it is and stays.
pub(crate) fn thread_mode(table: &Table) -> CUstreamCaptureMode {
    let mode = exchange_mode(table, RELAXED);
    exchange_mode(table, mode);
    mode
}

/// Sets the calling thread's capture mode, and returns what it was.
pub(crate) fn exchange_mode(table: &Table, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let exchange = table.cuThreadExchangeStreamCaptureMode().expect("cuThreadExchangeStreamCaptureMode");
    let mut mode = mode;
    // SAFETY: one mode, read and written.
    assert_eq!(unsafe { exchange(&mut mode) }, CUresult::CUDA_SUCCESS);
    mode
}

pub(crate) fn raw(stream: &Stream) -> CUstream {
    stream.as_raw().cast()
}
