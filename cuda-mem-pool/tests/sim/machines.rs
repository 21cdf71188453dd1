//! The machines that tests run on.

use cuda_mem_sim::{Builder, Sim};

/// A simulated machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) driver: i32,
    pub(crate) numa_nodes: i32,
    pub(crate) peers: bool,
}

/// Two devices, with no, one or two nodes, that reach each other or not.
pub(crate) fn machines(driver: i32) -> [Machine; 3] {
    [(0, true), (1, false), (2, true)].map(|(numa_nodes, peers)| Machine { driver, numa_nodes, peers })
}

impl Machine {
    pub(crate) fn builder(self) -> Builder {
        let builder = Sim::builder().devices(2).workers(2).driver(self.driver).numa_nodes(self.numa_nodes);
        if self.peers { builder } else { builder.no_peer_access() }
    }

    /// Whether the driver has pools of host memory on no node in particular, and of managed memory.
    pub(crate) fn has_host_pools(self) -> bool {
        self.driver >= 13000
    }

    /// Whether the driver has pools on nodes, and the machine nodes.
    pub(crate) fn has_node_pools(self) -> bool {
        self.driver >= 12060 && self.numa_nodes > 0
    }
}
