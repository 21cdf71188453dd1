//! What a pool must say of itself.

use std::collections::BTreeSet;

use super::kinds::{Config, Resource};

/// What the simulated driver rounds limits of pools up to.
const SEGMENT: u64 = 32 << 20;

/// The model of one pool of the driver, which several resources may be of.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: Config,
    /// The number of its device.
    pub(super) device: usize,
    /// The bytes that are out: as many as were asked for, from the call that allocates to the call that frees.
    pub(super) used: u64,
    high: u64,
    threshold: u64,
    pub(super) peers: BTreeSet<usize>,
}

impl Pool {
    pub(super) fn new(config: Config, device: usize) -> Self {
        Self { config, device, used: 0, high: 0, threshold: 0, peers: BTreeSet::new() }
    }

    /// A resource of it was made.
    pub(super) fn opened(&mut self) {
        // The driver's own pools are left alone.
        if self.threshold == 0 && self.config.owned {
            self.threshold = u64::MAX;
        }
    }

    /// The most that it may hold.
    pub(super) fn most(&self) -> u64 {
        match self.config.max_size {
            0 => u64::MAX,
            most => (most as u64).next_multiple_of(SEGMENT),
        }
    }

    pub(super) fn allocated(&mut self, bytes: usize) {
        self.used += bytes as u64;
        self.high = self.high.max(self.used);
        assert!(self.used <= self.most());
    }

    pub(super) fn set_threshold(&mut self, resource: &Resource, bytes: u64) {
        resource.attributes().set_release_threshold(bytes).unwrap();
        self.threshold = bytes;
    }

    pub(super) fn reset_highs(&mut self, resource: &Resource) {
        let attributes = resource.attributes();
        attributes.reset_used_mem_high().unwrap();
        attributes.reset_reserved_mem_high().unwrap();
        assert_eq!(attributes.reserved_mem_high().unwrap(), attributes.reserved_mem_current().unwrap());
        self.high = self.used;
    }

    /// Trims it. All of it is free for that if nothing is out and `quiet`: no free is still to come in a stream.
    pub(super) fn trim(&self, resource: &Resource, keep: usize, quiet: bool) {
        let reserved = || resource.attributes().reserved_mem_current().unwrap();
        let before = reserved();
        resource.trim_to(keep).unwrap();
        let after = reserved();
        assert!(after <= before);
        if quiet && self.used == 0 && !self.config.shared {
            assert!(after <= keep as u64, "{after} bytes are held, {keep} are to be kept");
        }
        if before <= keep as u64 {
            assert_eq!(after, before, "there was nothing to trim");
        }
    }

    /// What was not in use when everything was waited for is above the threshold no more.
    pub(super) fn synchronised(&self, resource: &Resource) {
        if self.used == 0 && !self.config.shared {
            assert!(resource.attributes().reserved_mem_current().unwrap() <= self.threshold);
        }
    }

    pub(super) fn check(&self, resource: &Resource) {
        let attributes = resource.attributes();
        let (used, high) = (attributes.used_mem_current().unwrap(), attributes.used_mem_high().unwrap());
        assert_eq!((used, high), (self.used, self.high));
        let reserved = attributes.reserved_mem_current().unwrap();
        assert!(reserved >= used && reserved <= self.most(), "{reserved} bytes are held, {used} are out");
        assert!(attributes.reserved_mem_high().unwrap() >= reserved.max(high));
        assert_eq!(attributes.release_threshold().unwrap(), self.threshold);
        assert_eq!(resource.is_handle_owned(), self.config.owned);
    }
}
