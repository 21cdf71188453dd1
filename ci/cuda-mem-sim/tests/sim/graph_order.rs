//! The order within graphs: what comes after what can be asked for, and what nothing orders is found.

use std::ptr;

use cuda_mem_sim::MisuseKind;
use cuda_mem_sys::*;

use crate::common::{Machine, code, ok};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const PAGE: usize = 2 << 20;

/// A page of memory that is mapped: uses of its bytes are compared with each other.
fn mapped(machine: &Machine) -> CUdeviceptr {
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    let properties = CUmemAllocationProp_v1 { type_, location, ..CUmemAllocationProp_v1::default() };
    let (mut handle, mut at) = (0, 0);
    ok!(machine.table, cuMemCreate(&mut handle, PAGE, &properties, 0));
    ok!(machine.table, cuMemAddressReserve(&mut at, PAGE, 0, 0, 0));
    ok!(machine.table, cuMemMap(at, PAGE, 0, handle, 0));
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = CUmemAccessDesc_v1 { location, flags };
    ok!(machine.table, cuMemSetAccess(at, PAGE, &access, 1));
    at
}

fn fill(machine: &Machine, at: CUdeviceptr, stream: CUstream) {
    ok!(machine.table, cuMemsetD32Async(at, 7, 64, stream));
}

fn join(machine: &Machine, from: CUstream, to: CUstream) {
    let event = machine.event(2);
    ok!(machine.table, cuEventRecord(event, from));
    ok!(machine.table, cuStreamWaitEvent(to, event, 0));
}

/// The graph of what `body` gives two streams, the second of which is joined back at the end.
fn captured(machine: &Machine, body: impl FnOnce(CUstream, CUstream)) -> CUgraph {
    let (origin, other) = (machine.stream(1), machine.stream(1));
    ok!(machine.table, cuStreamBeginCapture(origin, GLOBAL));
    join(machine, origin, other);
    body(origin, other);
    join(machine, other, origin);
    let mut graph = ptr::null_mut();
    ok!(machine.table, cuStreamEndCapture(origin, &mut graph));
    graph
}

fn exec(machine: &Machine, graph: CUgraph) -> CUgraphExec {
    let mut exec = ptr::null_mut();
    ok!(machine.table, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn kinds(machine: &Machine) -> Vec<MisuseKind> {
    machine.sim.misuse().iter().map(|misuse| misuse.kind).collect()
}

#[test]
fn branches_that_write_the_same_bytes_race_unless_they_are_joined_between() {
    for joins in [true, false] {
        let machine = Machine::new();
        let at = mapped(&machine);
        let graph = captured(&machine, |origin, other| {
            fill(&machine, at, origin);
            if joins {
                join(&machine, origin, other);
            }
            fill(&machine, at + 128, other);
        });
        let (exec, stream) = (exec(&machine, graph), machine.stream(1));
        assert_eq!(kinds(&machine), [], "nothing has run");
        ok!(machine.table, cuGraphLaunch(exec, stream));
        let expected: &[MisuseKind] = if joins { &[] } else { &[MisuseKind::Race] };
        assert_eq!(kinds(&machine), expected, "{joins}");
    }
}

#[test]
fn what_a_stream_is_given_behind_a_graph_comes_after_all_branches() {
    let machine = Machine::new();
    let at = mapped(&machine);
    let graph = captured(&machine, |origin, other| {
        fill(&machine, at, origin);
        fill(&machine, at + 4096, other);
    });
    let (exec, stream) = (exec(&machine, graph), machine.stream(1));
    fill(&machine, at, stream);
    ok!(machine.table, cuGraphLaunch(exec, stream));
    fill(&machine, at + 4096, stream);
    assert_eq!(kinds(&machine), []);
}

#[test]
fn one_launch_comes_after_the_other_wherever_they_are() {
    let machine = Machine::new();
    let at = mapped(&machine);
    let graph = captured(&machine, |origin, _| fill(&machine, at, origin));
    let (exec, stream) = (exec(&machine, graph), machine.stream(1));
    ok!(machine.table, cuGraphLaunch(exec, stream));
    ok!(machine.table, cuGraphLaunch(exec, machine.stream(1)));
    ok!(machine.table, cuGraphLaunch(exec, machine.stream(1)));
    assert_eq!(kinds(&machine), []);
    fill(&machine, at, stream);
    assert_eq!(
        kinds(&machine),
        [MisuseKind::Race],
        "of the last launch, which the first stream does not wait for"
    );
}

#[test]
fn an_event_of_a_branch_stands_for_that_branch() {
    let machine = Machine::new();
    let at = mapped(&machine);
    let event = machine.event(2);
    let graph = captured(&machine, |origin, other| {
        fill(&machine, at, origin);
        ok!(machine.table, cuEventRecordWithFlags(event, origin, 1));
        fill(&machine, at + 4096, other);
    });
    let (exec, stream, behind) = (exec(&machine, graph), machine.stream(1), machine.stream(1));
    ok!(machine.table, cuGraphLaunch(exec, stream));
    ok!(machine.table, cuStreamWaitEvent(behind, event, 0));
    fill(&machine, at, behind);
    assert_eq!(kinds(&machine), []);
    fill(&machine, at + 4096, behind);
    assert_eq!(kinds(&machine), [MisuseKind::Race]);
}

#[test]
fn a_node_says_what_it_comes_after() {
    let machine = Machine::new();
    let at = mapped(&machine);
    let graph = captured(&machine, |origin, other| {
        fill(&machine, at, origin);
        fill(&machine, at + 4096, other);
        join(&machine, other, origin);
        fill(&machine, at, origin);
    });
    let mut count = 3;
    let mut nodes = [ptr::null_mut(); 3];
    ok!(machine.table, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!(count, 3);
    let before = |node, room: usize| {
        let (mut found, mut count) = (vec![ptr::without_provenance_mut(1); room], room);
        ok!(machine.table, cuGraphNodeGetDependencies(node, found.as_mut_ptr(), &mut count));
        (found, count)
    };
    assert_eq!(before(nodes[0], 2), (vec![ptr::null_mut(); 2], 0));
    let (mut found, count) = before(nodes[2], 4);
    found.sort();
    let mut expected = vec![nodes[0], nodes[1], ptr::null_mut(), ptr::null_mut()];
    expected.sort();
    assert_eq!((found, count), (expected, 2));
    assert_eq!(before(nodes[2], 1).1, 1, "no more than there is room for");
    let mut count = 0;
    ok!(machine.table, cuGraphNodeGetDependencies(nodes[2], ptr::null_mut(), &mut count));
    assert_eq!(count, 2);
    assert_eq!(
        code!(machine.table, cuGraphNodeGetDependencies(ptr::null_mut(), ptr::null_mut(), &mut count)),
        1
    );
}
