//! Graphs: operations written down, to be launched as often as one likes.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use cuda_mem_sys::{CUgraphNodeType, CUresult};

use super::branches::{Branches, Launch};
use super::event::Last;
use super::op::{HostCall, Op, Outcome, Run};
use super::queue::Mark;
use super::stream::Stream;
use super::{HandleKind, Runtime, State, new_handle};
use crate::call::Call;
use crate::order::Clock;
use crate::site::Site;

/// A graph.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Each comes after nodes that stand before it only, so the order of this list is one that a launch may take.
    pub(crate) nodes: Vec<Node>,
    /// References to user objects, by handle.
    objects: BTreeMap<usize, u32>,
    pub(crate) made: Site,
    /// Whether a capture still writes it.
    pub(crate) is_being_captured: bool,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) handle: usize,
    pub(crate) kind: CUgraphNodeType,
    /// Handles of nodes.
    pub(crate) after: Vec<usize>,
    work: Work,
}

/// What a node does.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Op(Op),
    /// Records an event.
    Record(usize),
    /// Waits for an event.
    Wait(usize),
    Nothing,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Exec {
    nodes: Vec<Node>,
    branches: Branches,
    objects: BTreeMap<usize, u32>,
    pub(crate) made: Site,
    /// The end of its last launch: it does not run beside itself.
    last: Option<(Mark, Clock)>,
}

/// An object of the program that graphs keep alive.
#[derive(Debug)]
pub(crate) struct UserObject {
    destroy: HostCall,
    references: u32,
    pub(crate) made: Site,
}

impl UserObject {
    pub(crate) fn new(destroy: HostCall, references: u32, made: Site) -> Self {
        Self { destroy, references, made }
    }
}

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

impl Graph {
    pub(crate) fn new(made: Site, is_being_captured: bool) -> Self {
        Self { nodes: Vec::new(), objects: BTreeMap::new(), made, is_being_captured }
    }

    /// Adds a node that comes after others; gives its handle.
    pub(crate) fn add(&mut self, kind: CUgraphNodeType, after: Vec<usize>, work: Work) -> usize {
        let handle = new_handle(HandleKind::Node);
        self.nodes.push(Node { handle, kind, after, work });
        handle
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        self.nodes.iter().any(|known| known.handle == node)
    }

    /// Whether every node is one of `last` or comes before one of them.
    pub(crate) fn all_come_before(&self, last: &[usize]) -> bool {
        let mut reached: Vec<usize> = last.to_vec();
        for node in self.nodes.iter().rev() {
            if !reached.contains(&node.handle) {
                return false;
            }
            reached.extend(&node.after);
        }
        true
    }
}

impl Runtime {
    /// Makes a graph launchable.
    pub(crate) fn instantiate(&self, call: &Call<'_>, graph: usize) -> Outcome<usize> {
        let mut state = self.lock();
        let graph = state.graphs.get(&graph).filter(|graph| !graph.is_being_captured).ok_or(INVALID_VALUE)?;
        let (nodes, objects) = (graph.nodes.clone(), graph.objects.clone());
        for (object, count) in &objects {
            if let Some(object) = state.objects.get_mut(object) {
                object.references += count;
            }
        }
        let handle = new_handle(HandleKind::Exec);
        let branches = Branches::of(&nodes);
        state.execs.insert(handle, Exec { nodes, branches, objects, made: call.site(), last: None });
        Ok(handle)
    }

    /// Enqueues all nodes of a graph. Branches that could run beside each other run one after the other, but count as unordered.
    pub(crate) fn launch(&self, call: &Call<'_>, exec: usize, stream: &Arc<Stream>) -> Outcome<()> {
        let mut state = self.lock();
        state.refuse_implicit_use(stream)?;
        state.refuse_if_capturing(stream)?;
        let mut known = state.execs.remove(&exec).ok_or(INVALID_VALUE)?;
        let (before, knows) = known.last.take().unzip();
        let start = state.push(stream, Run::Nothing, before.as_slice(), knows.as_ref()).1;
        let mut launch = Launch::after(start);
        let mut uses = Vec::new();
        for (at, node) in known.nodes.iter().enumerate() {
            let awaited = match &node.work {
                Work::Wait(event) => match state.events.get(event).map(|event| event.last.clone()) {
                    Some(Last::At(point)) => Some(point),
                    _ => None,
                },
                _ => None,
            };
            let clock =
                known.branches.pass(&mut launch, at, node, awaited.as_ref().map(|point| &point.clock));
            match &node.work {
                Work::Op(Op { reads, writes, run, .. }) => {
                    state.push(stream, run.clone(), &[], None);
                    uses.push((reads.clone(), writes.clone(), clock));
                }
                Work::Record(event) => state.record_now(stream, *event, Some(clock)),
                Work::Wait(_) => {
                    if let Some(point) = awaited {
                        state.push(stream, Run::Nothing, &[point.mark], None);
                    }
                }
                Work::Nothing => {}
            }
        }
        known.last = Some(state.push(stream, Run::Nothing, &[], Some(&launch.end())));
        state.execs.insert(exec, known);
        self.wake_workers(&mut state);
        drop(state);
        let site = call.site();
        for (reads, writes, clock) in uses {
            self.note_uses(call, &reads, &writes, clock, &site);
        }
        Ok(())
    }

    /// Destroys a launchable graph; a launch under way goes on.
    pub(crate) fn destroy_exec(&self, exec: usize) -> Outcome<()> {
        let mut state = self.lock();
        let exec = state.execs.remove(&exec).ok_or(INVALID_VALUE)?;
        release_objects(state, exec.objects);
        Ok(())
    }

    pub(crate) fn destroy_graph(&self, graph: usize) -> Outcome<()> {
        let state = self.lock();
        state.graphs.get(&graph).filter(|graph| !graph.is_being_captured).ok_or(INVALID_VALUE)?;
        remove_graph(state, graph);
        Ok(())
    }

    pub(crate) fn retain_object(&self, object: usize, count: u32) -> Outcome<()> {
        let mut state = self.lock();
        state.objects.get_mut(&object).ok_or(INVALID_VALUE)?.references += count;
        Ok(())
    }

    pub(crate) fn release_object(&self, object: usize, count: u32) -> Outcome<()> {
        let state = self.lock();
        let known = state.objects.get(&object).ok_or(INVALID_VALUE)?;
        if known.references < count {
            return Err(INVALID_VALUE);
        }
        release_objects(state, BTreeMap::from([(object, count)]));
        Ok(())
    }

    /// Has a graph hold references to an object: new ones, or ones of the caller.
    pub(crate) fn graph_retains(&self, graph: usize, object: usize, count: u32, moves: bool) -> Outcome<()> {
        let mut state = self.lock();
        let State { graphs, objects, .. } = &mut *state;
        let graph = graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        let known = objects.get_mut(&object).ok_or(INVALID_VALUE)?;
        if !moves {
            known.references += count;
        }
        *graph.objects.entry(object).or_default() += count;
        Ok(())
    }

    /// Has a graph drop references to an object.
    pub(crate) fn graph_releases(&self, graph: usize, object: usize, count: u32) -> Outcome<()> {
        let mut state = self.lock();
        let graph = state.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        let held = graph.objects.get_mut(&object).filter(|held| **held >= count).ok_or(INVALID_VALUE)?;
        *held -= count;
        if *held == 0 {
            graph.objects.remove(&object);
        }
        release_objects(state, BTreeMap::from([(object, count)]));
        Ok(())
    }
}

impl State {
    pub(crate) fn add_graph(&mut self, graph: Graph) -> usize {
        let handle = new_handle(HandleKind::Graph);
        self.graphs.insert(handle, graph);
        handle
    }
}

/// Forgets a graph, and drops its references to objects.
pub(super) fn remove_graph(mut state: MutexGuard<'_, State>, graph: usize) {
    let objects = state.graphs.remove(&graph).map(|graph| graph.objects);
    release_objects(state, objects.unwrap_or_default());
}

/// Drops references to objects, and destroys those of the program that nothing holds any more, with no lock held.
fn release_objects(mut state: MutexGuard<'_, State>, held: BTreeMap<usize, u32>) {
    let mut released = Vec::new();
    for (handle, count) in held {
        if let Some(object) = state.objects.get_mut(&handle) {
            object.references = object.references.saturating_sub(count);
            if object.references == 0 {
                released.push(object.destroy);
                state.objects.remove(&handle);
            }
        }
    }
    drop(state);
    released.into_iter().for_each(HostCall::call);
}
