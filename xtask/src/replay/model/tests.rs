use cuda_mem_pool::trace::Trace;

use super::super::calls::CallLog;
use super::super::costs::Kind;
use super::super::machine::Machine;
use super::super::plan::Plan;
use super::{Model, Refusal};

const PAGE: u64 = 2 << 20;

fn model(capacity: u64, lag: u64) -> Model {
    let trace = Trace::read("# wall_s=3\nop,id,size,stream\na,0,1,0\nf,0,,0\na,1,1,0\n".as_bytes()).unwrap();
    Model::new(&Plan::new("t", &trace).unwrap(), lag, capacity, CallLog::nowhere())
}

#[test]
fn the_driver_would_refuse_what_is_refused() {
    let model = model(u64::MAX, 0);
    let address = model.reserve(4 * PAGE).unwrap();
    let [first, second] = [(); 2].map(|()| model.create(PAGE).unwrap());
    let invalid = |result: Result<(), Refusal>| matches!(result, Err(Refusal::Invalid(_)));
    model.map(address, first).unwrap();
    assert!(invalid(model.map(address, second)), "mapped twice");
    assert!(invalid(model.map(address + PAGE / 2, second)), "mapped half twice");
    assert!(invalid(model.map(address - PAGE / 2, second)), "mapped half twice, from below");
    assert!(invalid(model.map(address + PAGE, 9)), "no such handle");
    assert!(invalid(model.set_access(address, 2 * PAGE)), "half of it is not mapped");
    model.map(address + PAGE, second).unwrap();
    model.set_access(address, 2 * PAGE).unwrap();
    assert!(invalid(model.release(first)), "still mapped");
    assert!(invalid(model.unmap(address, PAGE / 2)), "half a mapping");
    assert!(invalid(model.unmap(address + 2 * PAGE, PAGE)), "not mapped");
    model.map(address + 2 * PAGE, first).unwrap();
    model.unmap(address, 2 * PAGE).unwrap();
    assert!(invalid(model.release(first)), "mapped a second time");
    model.unmap(address + 2 * PAGE, PAGE).unwrap();
    model.release(first).unwrap();
    assert!(invalid(model.release(first)), "released before");
    assert!(invalid(model.malloc_free(address)), "not from malloc");
    assert_eq!(model.peaks().unwrap().mappings, 3);
    assert!(matches!(model.reserve(u64::MAX), Err(Refusal::Invalid(_))));
}

#[test]
fn there_is_no_more_than_the_capacity() {
    let model = model(2 * PAGE, 0);
    let first = model.create(PAGE).unwrap();
    let block = model.malloc(PAGE).unwrap();
    assert_eq!(model.create(1), Err(Refusal::OutOfMemory));
    assert_eq!(model.malloc(1), Err(Refusal::OutOfMemory));
    model.release(first).unwrap();
    model.create(PAGE).unwrap();
    model.malloc_free(block).unwrap();
    model.create(PAGE).unwrap();
    assert_eq!(model.peaks().unwrap().reserved, 2 * PAGE);
}

#[test]
fn calls_are_counted_and_cost_by_handle() {
    let model = model(u64::MAX, 1);
    let address = model.reserve(2 * PAGE).unwrap();
    for place in [address, address + PAGE] {
        model.map(place, model.create(PAGE).unwrap()).unwrap();
    }
    model.set_access(address, 2 * PAGE).unwrap();
    model.unmap(address, 2 * PAGE).unwrap();
    model.release(0).unwrap();
    let costs = model.costs();
    let counts = costs.calls.by_kind().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
    assert_eq!(
        counts,
        [
            (Kind::Reserve, 1),
            (Kind::Create, 2),
            (Kind::Map, 2),
            (Kind::Access, 1),
            (Kind::Unmap, 1),
            (Kind::Release, 1)
        ]
    );
    assert_eq!(costs.driver.as_micros(), 5 + 2 * 7 + 2 + 2 * 20 + 2 * 13 + 8);
    assert!(costs.host_wait.is_zero());
    // The device is one operation behind, and a run of three operations took three seconds.
    model.wait(&model.record(0));
    assert_eq!(model.costs().host_wait.as_secs(), 1);
    assert_eq!(model.costs().syncs, 0);
    model.synchronize();
    assert_eq!((model.costs().syncs, model.costs().host_wait.as_secs()), (1, 1));
}

#[test]
fn a_fence_is_reached_when_the_device_comes_to_it() {
    let model = model(u64::MAX, 2);
    model.begin(1).unwrap();
    let fence = model.record(0);
    model.begin(2).unwrap();
    assert!(!model.is_complete(&fence));
    model.begin(3).unwrap();
    assert!(model.is_complete(&fence));
    let (later, other) = (model.record(0), model.record(1));
    model.make_wait(1, &later);
    model.begin(4).unwrap();
    let behind = model.record(1);
    model.wait(&other);
    assert!(model.is_complete(&later));
    assert!(!model.is_complete(&behind));
}
