//! Places in captures: where a stream stands, and what comes before that.
//!
//! # Safety
//!
//! Relies on the nodes of a graph staying in it while it is captured (the documentation of `cuStreamGetCaptureInfo` permits
//! no removal), and on the callers' word that nobody else works at the capture: the driver's list of a stream's nodes is its own, until
//! the stream is given something or the capture ends.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::collections::HashSet;
use std::ptr;

use cuda_mem_sys::{CUgraphNode, CUgraphNode_st, CUresult, CUstreamCaptureStatus};

use super::idle::WhenIdle;
use super::{Entered, Stream};
use crate::driver::{Context, Driver, Handle};
use crate::error::{Error, Result, call};

/// Most nodes come after fewer than this, and are asked about in one call.
const USUAL: usize = 8;

type Node = Handle<CUgraphNode_st>;

/// All that comes before a place in a capture, and the place itself. It is kept from one place to the next, so that each node
/// of the graph is asked about once.
///
/// ```
/// use cuda_mem_core::{CapturePast, Driver, Event, Stream};
/// use cuda_mem_core::sys::CUstreamCaptureMode;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let (stream, side) = (Stream::new(&context)?, Stream::new(&context)?);
/// let table = driver.table();
/// let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
/// // SAFETY: a live stream.
/// unsafe { table.cuStreamBeginCapture().unwrap()(stream.as_raw().cast(), mode) };
/// let event = Event::new(&context)?;
/// stream.record(&event)?;
/// // SAFETY: nobody else works at the capture, and its graph is not launched.
/// unsafe { side.join_capture(&event) }?; // the second stream is part of it from here on
/// // SAFETY: one host function on nothing.
/// unsafe { table.cuLaunchHostFunc().unwrap()(side.as_raw().cast(), Some(nothing), std::ptr::null_mut()) };
///
/// let mut past = CapturePast::new();
/// // SAFETY: nobody else works at the capture.
/// let used = unsafe { side.capture_point() }?.unwrap();
/// // SAFETY: as above.
/// unsafe { past.advance(&stream.capture_point()?.unwrap()) }?;
/// assert!(!past.contains(&used));
///
/// side.record(&event)?;
/// // SAFETY: as above.
/// unsafe { stream.join_capture(&event) }?;
/// // SAFETY: as above.
/// unsafe { past.advance(&stream.capture_point()?.unwrap()) }?;
/// assert!(past.contains(&used));
/// # let mut graph = std::ptr::null_mut();
/// # unsafe { table.cuStreamEndCapture().unwrap()(stream.as_raw().cast(), &mut graph) };
/// # unsafe { table.cuGraphDestroy().unwrap()(graph) };
/// # unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct CapturePast {
    place: Option<CapturePoint>,
    /// The addresses of the nodes.
    nodes: HashSet<usize>,
}

impl CapturePast {
    /// Of no place.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what comes before `place`. What does not, although it came before the last place, is forgotten.
    ///
    /// Wraps [`cuGraphNodeGetDependencies`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html) for each node that is
    /// new. What a node may begin before is not taken to come before it.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`]; it is of no place then.
    ///
    /// # Safety
    ///
    /// The capture of `place` has not ended, and until this returns no thread ends it, gives one of its streams work, or changes its
    /// graph.
    pub unsafe fn advance(&mut self, place: &CapturePoint) -> Result<()> {
        let before = self.place.take();
        let before = before.filter(|before| is_same_capture(before, place));
        if before.as_ref().is_some_and(|before| before.nodes == place.nodes) {
            self.place = before;
            return Ok(());
        }
        let driver = place.context.driver();
        let bound = place.context.bind()?;
        // SAFETY: a node of the capture's graph: of the place, or found to come before one.
        let mut ask = |node: Node, found: &mut Vec<Node>| unsafe { dependencies(driver, node, found) };
        let last = before.map_or_else(Vec::new, |before| before.nodes);
        if last.is_empty() {
            self.nodes.clear();
        }
        if !reach(&mut self.nodes, &place.nodes, &last, &mut ask)? {
            // The stream was set to a place that does not come after the last one.
            self.nodes.clear();
            reach(&mut self.nodes, &place.nodes, &[], &mut ask)?;
        }
        drop(bound);
        self.place = Some(place.clone());
        Ok(())
    }

    /// Whether all that comes before `point`, which was taken earlier, comes before this place. Never of another capture.
    #[must_use]
    pub fn contains(&self, point: &CapturePoint) -> bool {
        self.place.as_ref().is_some_and(|place| is_same_capture(place, point))
            && point.nodes.iter().all(|node| self.nodes.contains(&address(*node)))
    }
}

fn is_same_capture(one: &CapturePoint, other: &CapturePoint) -> bool {
    one.capture == other.capture && one.context.driver() == other.context.driver()
}

fn address(node: Node) -> usize {
    node.raw().addr()
}

/// Adds `from` and all that comes before it to `nodes`, which have all that comes before any of them; whether that went past all of
/// `last`.
fn reach(
    nodes: &mut HashSet<usize>,
    from: &[Node],
    last: &[Node],
    ask: &mut impl FnMut(Node, &mut Vec<Node>) -> Result<()>,
) -> Result<bool> {
    let mut ahead: HashSet<usize> = last.iter().map(|&node| address(node)).collect();
    let mut open = from.to_vec();
    while let Some(node) = open.pop() {
        ahead.remove(&address(node));
        if nodes.insert(address(node)) {
            ask(node, &mut open)?;
        }
    }
    Ok(ahead.is_empty())
}

/// Adds what a node comes after to `found`.
///
/// # Safety
///
/// A node of a graph that nobody else works at.
unsafe fn dependencies(driver: Driver, node: Node, found: &mut Vec<Node>) -> Result<()> {
    let mut usual = [ptr::null_mut(); USUAL];
    let mut count = usual.len();
    // SAFETY: a live node, by the caller's promise; room for as many as it says.
    let asked =
        unsafe { call!(driver, cuGraphNodeGetDependencies(node.raw(), usual.as_mut_ptr(), &mut count)) };
    match asked {
        // Edges of which one cannot tell that all before them is done.
        Err(Error::Driver(error)) if error.code() == CUresult::CUDA_ERROR_LOSSY_QUERY => return Ok(()),
        asked => asked?,
    }
    if count < usual.len() {
        found.extend(usual.iter().take(count).map(|&node| Handle::new(node)));
        return Ok(());
    }
    // There may be more.
    // SAFETY: as above; only their number is asked for.
    unsafe { call!(driver, cuGraphNodeGetDependencies(node.raw(), ptr::null_mut(), &mut count)) }?;
    let mut all: Vec<CUgraphNode> = vec![ptr::null_mut(); count];
    // SAFETY: as above.
    unsafe { call!(driver, cuGraphNodeGetDependencies(node.raw(), all.as_mut_ptr(), &mut count)) }?;
    found.extend(all.into_iter().take(count).map(Handle::new));
    Ok(())
}

/// What names a capture for the life of the process. [`Stream::capture_id`] gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureId(u64);

impl CaptureId {
    /// The number that `cuStreamGetCaptureInfo` gives.
    #[must_use]
    pub fn as_raw(self) -> u64 {
        self.0
    }
}

/// A place in a capture: behind all that a stream had been given there. [`CapturePast`](crate::CapturePast) compares places, and has an example.
#[derive(Debug, Clone)]
pub struct CapturePoint {
    context: Context,
    capture: CaptureId,
    /// What the stream's next node would come after; none at the beginning of a capture.
    nodes: Vec<Handle<CUgraphNode_st>>,
}

impl CapturePoint {
    /// The capture.
    #[must_use]
    pub fn capture(&self) -> CaptureId {
        self.capture
    }
}

impl Stream {
    /// The capture that the stream takes part in; None if it captures nothing, or the capture was invalidated.
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    pub fn capture_id(&self) -> Result<Option<CaptureId>> {
        let entered = self.enter()?;
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live stream; a status and a number to write, and nothing else.
        unsafe {
            call!(
                self.driver(),
                cuStreamGetCaptureInfo(entered.raw(), &mut status, &mut id, graph, nodes, count)
            )
        }?;
        Ok((status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE).then_some(CaptureId(id)))
    }

    /// Where the stream stands in its capture, behind all that it was given; None as for [`Stream::capture_id`].
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Errors
    ///
    /// As [`Stream::capture_id`], and [`Error::Driver`](crate::Error::Driver) with `CUDA_ERROR_LOSSY_QUERY` where the next node would not come wholly
    /// after what the stream was given.
    ///
    /// # Safety
    ///
    /// Until this returns, no other thread gives the stream anything, changes what it comes after, or ends its capture.
    pub unsafe fn capture_point(&self) -> Result<Option<CapturePoint>> {
        let entered = self.enter()?;
        self.driver().service::<WhenIdle>().streams.alone(&self.inner, || {
            // SAFETY: the caller's promise for threads of the program; `alone` keeps those of this crate from naming the stream.
            unsafe { self.read_point(&entered) }
        })
    }

    /// # Safety
    ///
    /// As [`Stream::capture_point`], also of threads of this crate.
    unsafe fn read_point(&self, entered: &Entered<'_>) -> Result<Option<CapturePoint>> {
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (mut nodes, mut count) = (ptr::null::<CUgraphNode>(), 0);
        let graph = ptr::null_mut();
        // SAFETY: a live stream; each place to write to is of its type, and the graph is not asked for.
        unsafe {
            call!(
                self.driver(),
                cuStreamGetCaptureInfo(entered.raw(), &mut status, &mut id, graph, &mut nodes, &mut count)
            )
        }?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Ok(None);
        }
        let nodes: &[CUgraphNode] = match count {
            0 => &[],
            // SAFETY: the driver's list of so many nodes, which stays as it is until "the next API call which operates on the
            // stream or until end of capture" (its documentation); by the caller's promise both come after the copy below.
            _ => unsafe { std::slice::from_raw_parts(nodes, count) },
        };
        let nodes = nodes.iter().map(|&node| Handle::new(node)).collect();
        Ok(Some(CapturePoint { context: self.context().clone(), capture: CaptureId(id), nodes }))
    }
}
