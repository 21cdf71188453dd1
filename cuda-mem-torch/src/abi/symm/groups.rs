//! The groups that were joined, and how much of each is in somebody's hands.

use std::ffi::c_int;
use std::sync::Mutex;

use cuda_mem_ipc::symmetric::Error;

use crate::abi::error::{CUDA_MEM_TORCH_CAPTURING, Failure};
use crate::lock::lock;

struct Joined {
    ordinal: c_int,
    name: String,
    /// Allocations that were not deleted.
    live: usize,
    /// It serves nobody any more, and waits for what is live, then for its device.
    is_left: bool,
}

/// The oldest first.
static GROUPS: Mutex<Vec<Joined>> = Mutex::new(Vec::new());

/// A group that nobody has anything of any more, and its device.
pub(super) type Ended = (c_int, String);

pub(super) fn add(ordinal: c_int, name: &str) {
    lock(&GROUPS).push(Joined { ordinal, name: name.to_owned(), live: 0, is_left: false });
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
    let fits = |group: &&mut Joined| name.map_or(group.ordinal == ordinal, |name| group.name == name);
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

/// An allocation of the group has come back.
pub(super) fn give_back(name: &str) -> Option<Ended> {
    let mut groups = lock(&GROUPS);
    let place = groups.iter().position(|group| group.name == name)?;
    groups[place].live = groups[place].live.saturating_sub(1);
    end(&groups, place)
}

pub(super) fn leave(name: &str) -> Result<Option<Ended>, Failure> {
    let mut groups = lock(&GROUPS);
    let Some(place) = groups.iter().position(|group| !group.is_left && group.name == name) else {
        return Err(unknown(name, &groups));
    };
    groups[place].is_left = true;
    Ok(end(&groups, place))
}

/// It keeps its name until it is forgotten.
fn end(groups: &[Joined], place: usize) -> Option<Ended> {
    let Joined { ordinal, name, live, is_left } = &groups[place];
    (*is_left && *live == 0).then(|| (*ordinal, name.clone()))
}

/// The group that ended is nowhere any more.
pub(super) fn forget(name: &str) {
    lock(&GROUPS).retain(|group| group.name != name);
}

fn unknown(name: &str, groups: &[Joined]) -> Failure {
    let known = groups.iter().filter(|group| !group.is_left).map(|group| group.name.clone()).collect();
    Error::UnknownGroup { name: name.to_owned(), known }.into()
}
