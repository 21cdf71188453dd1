//! Physical memory that the program maps itself: handles, and the addresses it reserved for them.
//!
//! A handle's memory lives until the program has released the handle and unmapped it everywhere, here and in every
//! process that imported it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::account::Share;
use super::races::Races;
use super::space::Space;
use crate::site::Site;

/// A handle to physical memory, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HandleId(pub(crate) u64);

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Location {
    Device(usize),
    /// Host memory wherever the system puts it.
    Host,
    /// One node of host memory.
    Node(i32),
}

/// The memory of one handle.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) size: u64,
    pub(crate) location: Location,
    /// Whether it can be sent to another process.
    pub(crate) exportable: bool,
    /// Whether network devices may reach it.
    pub(crate) rdma: bool,
    backing: Backing,
    /// Handles that the program holds: one from creation, import or each retain.
    pub(crate) handles: u64,
    /// Places where it is mapped.
    pub(crate) mappings: u64,
    /// Whether it came from elsewhere.
    pub(crate) imported: bool,
    /// How it is counted once others may have it too.
    pub(super) share: Option<Share>,
    pub(crate) made_by: Site,
    pub(crate) races: Races,
}

/// Where the bytes of a handle are.
#[derive(Debug)]
enum Backing {
    /// In the space of device addresses, at addresses that nobody is told.
    Hidden(u64),
    /// In a file of its own, so that the descriptor another process receives is the memory.
    File(OwnedFd),
}

impl Physical {
    /// Memory behind addresses of `space` that nobody is told, for a handle that stays in this process.
    pub(crate) fn hidden(at: u64, size: u64, location: Location, made_by: Site) -> Self {
        Self::new(size, location, Backing::Hidden(at), made_by)
    }

    /// Memory in a file of its own.
    pub(crate) fn file(file: OwnedFd, size: u64, location: Location, made_by: Site) -> Self {
        Self::new(size, location, Backing::File(file), made_by)
    }

    fn new(size: u64, location: Location, backing: Backing, made_by: Site) -> Self {
        let exportable = matches!(backing, Backing::File(_));
        Self {
            size,
            location,
            exportable,
            rdma: false,
            backing,
            handles: 1,
            mappings: 0,
            imported: false,
            share: None,
            made_by,
            races: Races::default(),
        }
    }

    /// The file and offset of its bytes; none without data.
    pub(crate) fn source<'a>(&'a self, space: &'a Space) -> Option<(BorrowedFd<'a>, u64)> {
        match &self.backing {
            Backing::Hidden(at) => space.source(*at),
            Backing::File(file) => Some((file.as_fd(), 0)),
        }
    }

    /// The descriptor that is the memory, if it has one of its own.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Hidden(_) => None,
            Backing::File(file) => Some(file.as_fd()),
        }
    }

    /// Gives the memory back.
    pub(crate) fn release(self, space: &mut Space) {
        if let Backing::Hidden(at) = self.backing {
            space.give_back(at, self.size);
        }
    }

    /// Whether nothing here refers to the memory any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.handles == 0 && self.mappings == 0
    }
}

/// Addresses that the program reserved, by start.
#[derive(Debug, Default)]
pub(crate) struct Reservations(BTreeMap<u64, Reservation>);

/// One reservation of addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) len: u64,
    pub(crate) made_by: Site,
}

impl Reservations {
    pub(crate) fn insert(&mut self, start: u64, reservation: Reservation) {
        self.0.insert(start, reservation);
    }

    /// Forgets exactly the reservation `start .. start + len`.
    pub(crate) fn remove(&mut self, start: u64, len: u64) -> bool {
        let exact = self.0.get(&start).is_some_and(|reservation| reservation.len == len);
        if exact {
            self.0.remove(&start);
        }
        exact
    }

    /// Whether reservations hold all of `start .. start + len`, side by side if need be.
    pub(crate) fn hold(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        let mut reached = start;
        while let Some((first, len)) = self.around(reached) {
            reached = first + len;
            if reached >= end {
                return true;
            }
        }
        false
    }

    /// The reservation that an address lies in: its start and length.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, u64)> {
        let (&start, reservation) = self.0.range(..=at).next_back()?;
        (at - start < reservation.len).then_some((start, reservation.len))
    }

    /// Whether any reservation has a byte in `start .. start + len`.
    pub(crate) fn touch(&self, start: u64, len: u64) -> bool {
        self.around(start).is_some() || self.0.range(start..start.saturating_add(len)).next().is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Reservation)> + '_ {
        self.0.iter().map(|(&start, reservation)| (start, reservation))
    }
}
