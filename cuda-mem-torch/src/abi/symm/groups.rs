//! The groups that were joined, and how many allocations of each live.

use std::ffi::c_int;
use std::sync::Mutex;

use cuda_mem_ipc::symmetric::Error;

use crate::abi::devices::Device;
use crate::abi::error::{CUDA_MEM_TORCH_CAPTURING, Failure};
use crate::lock::lock;

struct Joined {
    device: &'static Device,
    name: String,
    /// Allocations that were not deleted.
    live: usize,
    /// It serves nobody any more, and waits for what is live, then for its device.
    is_left: bool,
}

/// The oldest first.
static GROUPS: Mutex<Vec<Joined>> = Mutex::new(Vec::new());

pub(super) fn add(device: &'static Device, name: &str) {
    lock(&GROUPS).push(Joined { device, name: name.to_owned(), live: 0, is_left: false });
}

/// Refuses the name of a group that was left and is there yet.
pub(super) fn refuse_left(name: &str) -> Result<(), Failure> {
    let groups = lock(&GROUPS);
    let Some(left) = groups.iter().find(|group| group.is_left && group.name == name) else { return Ok(()) };
    let refused = match left.live {
        0 => Failure::new(
            CUDA_MEM_TORCH_CAPTURING,
            format!(
                "the group {name:?} has not left yet, because a stream captures a graph, or another thread is about to give it back: \
                 join once that is over"
            ),
        ),
        live => Failure::argument(format!(
            "the group {name:?} was left with {live} allocations: delete them before it is joined again, or join under another name"
        )),
    };
    Err(refused)
}

/// The group that an allocation is for, which counts from here on: the one of the name, or the device's first.
pub(super) fn take(ordinal: c_int, name: Option<&str>) -> Result<String, Failure> {
    let mut groups = lock(&GROUPS);
    let fits = |group: &&mut Joined| name.map_or(group.device.ordinal == ordinal, |name| group.name == name);
    match groups.iter_mut().filter(|group| !group.is_left).find(fits) {
        Some(group) => {
            group.live += 1;
            Ok(group.name.clone())
        }
        None => Err(match name {
            Some(name) => unknown(name, &groups),
            None => Failure::argument(format!(
                "no group has been joined with device {ordinal}: symmetric memory is a group's"
            )),
        }),
    }
}

/// An allocation of the group has gone, and perhaps the group with it.
pub(super) fn give_back(name: &str) {
    if let Some(group) = lock(&GROUPS).iter_mut().find(|group| group.name == name) {
        group.live = group.live.saturating_sub(1);
        group.end();
    }
}

pub(super) fn leave(name: &str) -> Result<(), Failure> {
    let mut groups = lock(&GROUPS);
    match groups.iter_mut().find(|group| !group.is_left && group.name == name) {
        Some(group) => {
            group.is_left = true;
            group.end();
            Ok(())
        }
        None => Err(unknown(name, &groups)),
    }
}

impl Joined {
    /// Ends a group that nobody has anything of any more. It keeps its name until it is forgotten.
    fn end(&self) {
        if self.is_left && self.live == 0 {
            super::leave(self.device, self.name.clone());
        }
    }
}

/// The group that ended is nowhere any more.
pub(super) fn forget(name: &str) {
    lock(&GROUPS).retain(|group| group.name != name);
}

fn unknown(name: &str, groups: &[Joined]) -> Failure {
    let known = groups.iter().filter(|group| !group.is_left).map(|group| group.name.clone()).collect();
    Error::UnknownGroup { name: name.to_owned(), known }.into()
}
