use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::trace::Trace;

use super::super::calls::{CallLog, Text};
use super::super::costs::Kind;
use super::super::machine::Machine;
use super::super::plan::Plan;
use super::super::play::play;
use super::super::progress::Progress;
use super::{Device, DriverPool};

fn plan(lines: &str) -> Plan {
    let text = format!("# wall_s=1\nop,id,size,stream\n{}", lines.replace(' ', "\n"));
    Plan::new("t", &Trace::read(text.as_bytes()).unwrap()).unwrap()
}

#[test]
fn a_stream_is_held_until_the_host_is_so_far_ahead() {
    let plan = plan("a,0,1,0 f,0,,0");
    let device = Device::patient(&plan, 3, CallLog::nowhere()).unwrap();
    let stream = device.stream(0).unwrap();
    device.begin(1).unwrap();
    device.freeing(&plan.blocks[0]).unwrap();
    assert!(!stream.is_idle().unwrap());
    device.begin(3).unwrap();
    assert!(!stream.is_idle().unwrap());
    device.begin(4).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(device.costs().syncs, 0);
}

#[test]
fn a_use_on_another_stream_is_held_until_its_end() {
    let plan = plan("a,0,1,0 f,0,,0 a,1,1,0 a,2,1,0 c,0,,0");
    let side = plan.blocks[0].side.unwrap();
    let device = Device::patient(&plan, 1, CallLog::nowhere()).unwrap();
    device.begin(1).unwrap();
    device.freeing(&plan.blocks[0]).unwrap();
    device.begin(3).unwrap();
    // Its own work is done two operations after the free, the other stream's at 4.
    device.stream(0).unwrap().synchronize().unwrap();
    assert!(!device.stream(side.stream).unwrap().is_idle().unwrap());
    device.begin(4).unwrap();
    device.stream(side.stream).unwrap().synchronize().unwrap();
}

#[test]
fn a_device_that_is_waited_for_catches_up_and_that_is_counted() {
    let plan = plan("a,0,1,0 f,0,,0");
    let device = Device::simulated(&plan, 1000, Some(1 << 30), CallLog::nowhere()).unwrap();
    device.begin(1).unwrap();
    device.freeing(&plan.blocks[0]).unwrap();
    // Would not return by itself.
    device.stream(0).unwrap().synchronize().unwrap();
    let costs = device.costs();
    assert_eq!(costs.syncs, 1);
    assert_eq!(costs.host_wait, Duration::from_secs_f64(2.0 * plan.seconds_per_operation()));
}

#[test]
fn the_drivers_pool_is_replayed() {
    let plan = plan("a,0,1000,0 a,1,67108864,1 f,0,,0 f,1,,1 c,0,,0 a,2,1,0 f,2,,0 a,3,1,1");
    for (lag, threads) in [(0, 1), (2, 1), (2, 2)] {
        let device = Arc::new(Device::simulated(&plan, lag, Some(1 << 30), CallLog::nowhere()).unwrap());
        let pool = DriverPool::new(Arc::clone(&device), None).unwrap();
        let outcome = play(&plan, &pool, &*device, threads, &Progress::new(String::new(), 0)).unwrap();
        let calls = outcome.costs.calls.by_kind().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(calls, [(Kind::PoolAlloc, 4), (Kind::PoolFree, 3), (Kind::StreamWait, 1)]);
        assert_eq!(outcome.oom, 0);
        assert!(outcome.peaks.reserved >= plan.peak_live);
    }
}

#[test]
fn a_pool_that_is_full_is_out_of_memory() {
    let plan = plan("a,0,1048576,0 a,1,1099511627776,0 a,2,1,0");
    let device = Arc::new(Device::simulated(&plan, 0, Some(1 << 30), CallLog::nowhere()).unwrap());
    let pool = DriverPool::new(Arc::clone(&device), Some(1 << 29)).unwrap();
    let outcome = play(&plan, &pool, &*device, 1, &Progress::new(String::new(), 0)).unwrap();
    assert_eq!(outcome.oom, 1);
}

#[test]
fn a_block_is_told_done_when_all_its_streams_are() {
    let plan = plan("a,0,1,0 f,0,,0 a,1,1,0 a,2,1,0 c,0,,0 f,1,,0");
    let text = Text::default();
    let device = Device::patient(&plan, 1, CallLog::new(text.clone())).unwrap();
    let synchronize = |stream| device.stream(stream).unwrap().synchronize().unwrap();
    let taken = || String::from_utf8(text.take()).unwrap();
    device.begin(1).unwrap();
    device.freeing(&plan.blocks[0]).unwrap();
    device.begin(3).unwrap();
    synchronize(0);
    device.tell_done().unwrap();
    assert_eq!(taken(), "0,free,0,1\n", "the other stream is not done");
    device.begin(4).unwrap();
    synchronize(plan.blocks[0].side.unwrap().stream);
    device.tell_done().unwrap();
    assert_eq!(taken(), "1,done,0\n");
    device.freeing(&plan.blocks[1]).unwrap();
    device.tell_done().unwrap();
    assert_eq!(taken(), "2,free,1\n", "its stream is not done");
}
