//! Allocators that are wrong in one way, before the checker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Result;

use super::super::calls::{CallLog, Text};
use super::super::candidate::{Candidate, Refused, Tally};
use super::super::check;
use super::super::machine::Machine;
use super::super::model::{Fence, Model};
use super::super::plan::Plan;
use super::super::play::play;
use super::super::progress::Progress;
use super::{PAGE, trace};

/// An allocator of one page at two addresses that can be wrong in one way.
struct Careless {
    model: Arc<Model>,
    wrong: Wrong,
    addresses: [u64; 2],
    handle: u64,
    calls: AtomicU64,
    freed: Mutex<Option<Fence>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Overlap,
    NoOrder,
    EarlyUnmap,
    Unmapped,
}

impl Careless {
    /// One page, mapped at two addresses.
    fn new(model: Arc<Model>, wrong: Wrong) -> Self {
        let addresses = [model.reserve(PAGE).unwrap(), model.reserve(PAGE).unwrap()];
        let handle = model.create(PAGE).unwrap();
        for address in addresses {
            model.map(address, handle).unwrap();
            model.set_access(address, PAGE).unwrap();
        }
        Self { model, wrong, addresses, handle, calls: AtomicU64::new(0), freed: Mutex::default() }
    }
}

impl Candidate for Careless {
    fn allocate(&self, _size: u64, stream: u64) -> Result<u64, Refused> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let freed = self.freed.lock().unwrap().take();
        if let Some(fence) = freed.filter(|fence| fence.stream != stream && self.wrong != Wrong::NoOrder) {
            self.model.make_wait(stream, &fence);
        }
        Ok(match self.wrong {
            // The other mapping, half a page further: the same bytes as the first block's second half.
            Wrong::Overlap if call == 1 => self.addresses[1] + PAGE / 4,
            Wrong::Unmapped => self.addresses[1] + PAGE,
            _ => self.addresses[(call % 2) as usize],
        })
    }

    fn free(&self, address: u64, _side: Option<u64>) -> Result<(), Refused> {
        let fence = self.model.record(0);
        if self.wrong != Wrong::EarlyUnmap {
            self.model.wait(&fence);
        }
        if self.calls.load(Ordering::SeqCst) == if self.wrong == Wrong::EarlyUnmap { 1 } else { 3 } {
            self.model.unmap(address, PAGE)?;
        }
        *self.freed.lock().unwrap() = Some(fence);
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        Ok(Tally { retries: 0, metadata_bytes: self.handle, unconfirmed: None })
    }
}

/// Replays a careless allocator and has it checked.
fn judged(lines: &str, wrong: Wrong, waits: bool) -> Result<(), String> {
    let trace = trace(lines);
    let plan = Plan::new("t", &trace).unwrap();
    let text = Text::default();
    let model = Arc::new(Model::new(&plan, 5, u64::MAX, CallLog::new(text.clone())));
    let candidate = Careless::new(Arc::clone(&model), wrong);
    play(&plan, &candidate, &*model, 1, &Progress::new(String::new(), 0)).unwrap();
    let log = String::from_utf8(text.take()).unwrap();
    // Without its waits nothing is done early, and all reuse goes by order.
    let kept = log.lines().filter(|line| waits || !(line.contains(",wait,") || line.contains(",done,")));
    let log = kept.map(|line| format!("{line}\n")).collect::<String>();
    check::check(log.as_bytes(), Some(&trace), Some(5)).map(drop).map_err(|error| format!("{error:#}"))
}

#[test]
fn the_checker_finds_what_an_allocator_does_wrong() {
    let one_stream = "a,0,1048576,0 f,0,,0 a,1,1048576,0 f,1,,0 a,2,1,0 f,2,,0";
    let two_streams = "a,0,1048576,0 f,0,,0 a,1,1048576,1";
    let both_live = "a,0,1048576,0 a,1,1048576,0";
    judged(one_stream, Wrong::Nothing, true).unwrap();
    judged(two_streams, Wrong::Nothing, false).unwrap();
    let told = |lines, wrong| judged(lines, wrong, false).unwrap_err();
    assert!(told(two_streams, Wrong::NoOrder).contains("unordered"));
    assert!(told(one_stream, Wrong::EarlyUnmap).contains("before the work of the freed block 0 is done"));
    assert!(told(both_live, Wrong::Overlap).contains("overlaps the live block 0"));
    assert!(
        told(both_live, Wrong::Nothing).contains("overlaps the live block 0"),
        "one page at two addresses"
    );
    assert!(told(both_live, Wrong::Unmapped).contains("is not mapped"));
}

#[test]
fn an_order_that_came_before_the_free_is_told_as_such() {
    let plan = Plan::new("t", &trace("a,0,1,0 f,0,,0")).unwrap();
    let text = Text::default();
    let model = Model::new(&plan, 0, u64::MAX, CallLog::new(text.clone()));
    let before = model.record(0);
    model.make_wait(1, &before);
    model.freeing(&plan.blocks[0]).unwrap();
    model.make_wait(2, &before);
    model.make_wait(2, &model.record(0));
    model.synchronize();
    assert_eq!(model.costs().syncs, 1);
    let log = String::from_utf8(text.take()).unwrap();
    assert_eq!(log, "0,order,1,0\n1,free,0\n2,done,0\n3,order,2,0,0\n4,order,2,0\n5,wait,device\n");
}
