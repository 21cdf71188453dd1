//! What the order within a graph is, whatever order its nodes run in here.
//!
//! Each chain of nodes is a timeline of its own, so that work of two branches that no path joins counts as unordered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::graph::Node;
use crate::order::{Clock, GRAPHS, Timeline};

/// The timelines of a graph that can be launched. It does not run beside itself, so all launches share them.
#[derive(Debug)]
pub(super) struct Branches {
    /// Of each node, in the graph's order.
    timelines: Vec<Timeline>,
    moment: u64,
}

/// The clocks of one launch.
#[derive(Debug)]
pub(super) struct Launch {
    start: Clock,
    clocks: BTreeMap<usize, Clock>,
    all: Clock,
}

impl Branches {
    /// A node goes on with the chain that one of those before it ends; else it begins one.
    pub(super) fn of(nodes: &[Node]) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(GRAPHS);
        let mut ends: BTreeMap<usize, Timeline> = BTreeMap::new();
        let timeline = |node: &Node| {
            let chain = node.after.iter().find_map(|before| ends.remove(before));
            let timeline = chain.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed));
            ends.insert(node.handle, timeline);
            timeline
        };
        Self { timelines: nodes.iter().map(timeline).collect(), moment: 0 }
    }

    /// The clock of a node of this launch, which also knows what `knows` does.
    pub(super) fn pass(
        &mut self,
        launch: &mut Launch,
        at: usize,
        node: &Node,
        knows: Option<&Clock>,
    ) -> Clock {
        let mut clock = launch.start.clone();
        node.after
            .iter()
            .filter_map(|before| launch.clocks.get(before))
            .for_each(|before| clock.join(before));
        if let Some(knows) = knows {
            clock.join(knows);
        }
        self.moment += 1;
        if let Some(&timeline) = self.timelines.get(at) {
            clock.advance(timeline, self.moment);
        }
        launch.all.join(&clock);
        launch.clocks.insert(node.handle, clock.clone());
        clock
    }
}

impl Launch {
    /// All nodes come after `start`.
    pub(super) fn after(start: Clock) -> Self {
        Self { all: start.clone(), start, clocks: BTreeMap::new() }
    }

    /// What comes after all nodes.
    pub(super) fn end(self) -> Clock {
        self.all
    }
}
