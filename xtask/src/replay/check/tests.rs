use cuda_mem_pool::trace::Trace;

use super::{Sums, check};

const MIB: u64 = 1 << 20;

/// Numbers the events and checks them.
fn checked(events: &str) -> Result<Sums, String> {
    let lines = events.split_whitespace().enumerate().map(|(number, event)| format!("{number},{event}\n"));
    check(lines.collect::<String>().as_bytes(), None, None).map_err(|error| format!("{error:#}"))
}

fn refusal(events: &str) -> String {
    checked(events).unwrap_err()
}

/// With a trace, and a device that many operations behind.
fn against(trace: &str, lag: u64, events: &str) -> Result<Sums, String> {
    let trace = Trace::read(format!("op,id,size,stream\n{}", trace.replace(' ', "\n")).as_bytes()).unwrap();
    let lines = events.split_whitespace().enumerate().map(|(number, event)| format!("{number},{event}\n"));
    check(lines.collect::<String>().as_bytes(), Some(&trace), Some(lag)).map_err(|error| format!("{error:#}"))
}

/// A page at 0 that the device may use.
const PAGE: &str = "create,1,2097152 map,0,1,2097152 access,0,2097152";

#[test]
fn a_right_log_is_summed_up() {
    let sums = checked(&format!(
        "{PAGE} alloc,7,0,1000,0 alloc,8,1024,1,0 free,7 done,7 alloc,9,0,512,0 free,8 done,8 free,9 done,9 \
         unmap,0,2097152 release,1 wait,event"
    ))
    .unwrap();
    assert_eq!((sums.peak_live, sums.peak_active, sums.peak_reserved), (1536, None, 2 * MIB));
    assert_eq!((sums.allocations, sums.peak_mappings, sums.waits, sums.oom), (3, 1, 1, 0));
    assert!((sums.driver_seconds - 49e-6).abs() < 1e-12, "{}", sums.driver_seconds);
    assert_eq!(sums.events, 15);
}

#[test]
fn calls_cost_by_handle_and_allocations_by_size() {
    let sums = checked(
        "create,1,2097152 create,2,2097152 map,0,1,2097152 map,2097152,2,2097152 access,0,4194304 unmap,0,4194304 \
         malloc,8388608,1048576 mfree,8388608 malloc,8388608,1073741824 mfree,8388608",
    )
    .unwrap();
    let expected = 2.0 * 7.0 + 2.0 + 2.0 * 20.0 + 2.0 * 13.0 + 26.0 + 22.0 + 95.0 + 236.0;
    assert!((sums.driver_seconds * 1e6 - expected).abs() < 1e-6, "{}", sums.driver_seconds);
    assert_eq!(sums.peak_reserved, 1028 * MIB);
}

#[test]
fn live_blocks_overlap_neither_at_an_address_nor_in_a_page_that_is_mapped_twice() {
    let told = refusal(&format!("{PAGE} alloc,7,0,1000,0 alloc,8,512,1,0"));
    assert_eq!(told, "line 5: 4,alloc,8,512,1,0: block 8 overlaps the live block 7");
    let twice = format!("{PAGE} map,4194304,1,2097152 access,4194304,2097152 alloc,7,512,512,0");
    assert!(refusal(&format!("{twice} alloc,8,4194816,512,0")).ends_with("overlaps the live block 7"));
    checked(&format!("{twice} alloc,8,4195328,512,0")).unwrap();
    checked(&format!("{twice} alloc,8,4194304,512,0")).unwrap();
}

#[test]
fn a_block_lies_in_memory_that_is_mapped_and_accessible() {
    let told = refusal("create,1,2097152 map,0,1,2097152 alloc,7,0,1,0");
    assert!(told.ends_with("block 7: 0 is mapped, and the device was not let in"), "{told}");
    assert!(refusal("alloc,7,0,1,0").ends_with("block 7: 0 is not mapped"));
    assert!(refusal(&format!("{PAGE} alloc,7,2096640,1024,0")).ends_with("2097152 is not mapped"));
    let half = format!("{PAGE} create,2,2097152 map,2097152,2,2097152");
    assert!(refusal(&format!("{half} alloc,7,2096640,1024,0")).ends_with("not let in"));
    checked(&format!("{half} access,2097152,2097152 alloc,7,2096640,1024,0")).unwrap();
    let gone = format!("{PAGE} unmap,0,2097152 alloc,7,0,1,0");
    assert!(refusal(&gone).ends_with("is not mapped"));
    let again = format!("{PAGE} unmap,0,2097152 map,0,1,2097152 alloc,7,0,1,0");
    assert!(refusal(&again).ends_with("not let in"), "access goes with the mapping");
}

#[test]
fn nothing_is_unmapped_before_its_work_is_done() {
    let used = format!("{PAGE} alloc,7,0,1,0");
    assert!(refusal(&format!("{used} unmap,0,2097152")).ends_with("unmapped under the live block 7"));
    let told = refusal(&format!("{used} free,7 unmap,0,2097152"));
    assert!(told.ends_with("0 is unmapped before the work of the freed block 7 is done"), "{told}");
    checked(&format!("{used} free,7 done,7 unmap,0,2097152")).unwrap();
    // The address that the block was given counts, not the page: the other mapping of it may go.
    let twice = format!("{PAGE} map,4194304,1,2097152 access,4194304,2097152 alloc,7,0,1,0 free,7");
    checked(&format!("{twice} unmap,4194304,2097152")).unwrap();
    assert!(refusal(&format!("{twice} unmap,0,2097152")).ends_with("is done"));
}

#[test]
fn an_address_is_mapped_once_and_a_handle_released_unmapped() {
    let two = format!("{PAGE} create,2,2097152");
    assert!(refusal(&format!("{two} map,0,2,2097152")).ends_with("0 is mapped already, by Handle(1) at 0"));
    assert!(refusal(&format!("{two} map,1048576,2,2097152")).contains("mapped already"));
    assert!(
        refusal(&format!("{PAGE} release,1")).ends_with("Handle(1) is released and still mapped 1 times")
    );
    assert!(refusal("release,1").ends_with("there is no Handle(1)"));
    assert!(refusal("map,0,1,512").ends_with("there is no Handle(1)"));
    assert!(refusal("create,1,512 create,1,512").ends_with("is there already"));
    assert!(refusal("create,1,512 map,0,1,1024").ends_with("has 512 bytes, not 1024"));
    assert!(refusal(&format!("{PAGE} unmap,0,1048576")).contains("is not whole mappings"));
    assert!(refusal(&format!("{PAGE} access,2097152,512")).contains("is not whole mappings"));
    assert!(refusal("malloc,0,512 alloc,7,0,1,0 mfree,0").ends_with("under the live block 7"));
    assert!(refusal("malloc,0,512 alloc,7,0,1,0 free,7 mfree,0").ends_with("is done"));
}

#[test]
fn another_stream_gets_memory_in_order_only() {
    let freed = format!("{PAGE} alloc,7,0,1,0 free,7");
    let told = refusal(&format!("{freed} alloc,8,0,1,1"));
    assert!(
        told.ends_with("block 8 of stream 1 overlaps block 7, which stream 0 was given before, unordered")
    );
    checked(&format!("{freed} alloc,8,0,1,0")).unwrap();
    checked(&format!("{freed} done,7 alloc,8,0,1,1")).unwrap();
    checked(&format!("{freed} order,1,0 alloc,8,0,1,1")).unwrap();
    assert!(
        refusal(&format!("{freed} order,0,1 alloc,8,0,1,1")).contains("unordered"),
        "the wrong way round"
    );
    assert!(refusal(&format!("{freed} order,2,0 alloc,8,0,1,1")).contains("unordered"), "another stream");
    let early = format!("{PAGE} alloc,7,0,1,0 order,1,0 free,7 alloc,8,0,1,1");
    assert!(refusal(&early).contains("unordered"), "before the free");
    // The wait is for an event that was recorded before the free, which is event 4.
    assert!(refusal(&format!("{freed} order,1,0,4 alloc,8,0,1,1")).contains("unordered"));
    checked(&format!("{freed} order,1,0,5 alloc,8,0,1,1")).unwrap();
}

#[test]
fn order_goes_on_from_stream_to_stream() {
    let freed = format!("{PAGE} alloc,7,0,1,0 free,7");
    checked(&format!("{freed} order,1,0 order,2,1 alloc,8,0,1,2")).unwrap();
    assert!(refusal(&format!("{freed} order,2,1 order,1,0 alloc,8,0,1,2")).contains("unordered"));
    // 2 waits for what 1 was given before it waited for 0.
    assert!(refusal(&format!("{freed} order,1,0 order,2,1,5 alloc,8,0,1,2")).contains("unordered"));
    checked(&format!("{freed} order,1,0 order,2,1,6 alloc,8,0,1,2")).unwrap();
}

#[test]
fn the_freed_block_below_a_freed_block_still_counts() {
    // 8 had the page after 7 and in order; 2 waits for 8's stream at its beginning only.
    let twice = format!("{PAGE} alloc,7,0,1,0 free,7 order,1,0 alloc,8,0,1,1 free,8");
    checked(&format!("{twice} order,2,1 alloc,9,0,1,2")).unwrap();
    assert!(refusal(&format!("{twice} done,8 alloc,9,0,1,2")).contains("block 7"));
}

#[test]
fn blocks_are_allocated_freed_and_done_once() {
    assert!(refusal(&format!("{PAGE} alloc,7,0,1,0 alloc,7,512,1,0")).ends_with("block 7 is there already"));
    assert!(refusal("free,7").ends_with("there is no block 7"));
    assert!(refusal(&format!("{PAGE} alloc,7,0,1,0 free,7 free,7")).ends_with("freed already"));
    assert!(refusal(&format!("{PAGE} alloc,7,0,1,0 done,7")).ends_with("was not freed"));
    assert!(refusal(&format!("{PAGE} alloc,7,0,1,0 free,7 done,7 done,7")).ends_with("there is no block 7"));
}

#[test]
fn a_pending_block_is_nobodys_until_it_is_done() {
    let trace = "a,7,1,0 f,7,,0 a,8,1,0 c,7,,0 a,9,1,0";
    let told = against(trace, 0, &format!("{PAGE} alloc,7,0,1,0 free,7 alloc,8,0,1,0")).unwrap_err();
    assert!(told.ends_with("block 8 overlaps block 7, which another stream still uses"), "{told}");
    let right = format!("{PAGE} alloc,7,0,1,0 free,7 alloc,8,512,1,0 done,7 alloc,9,0,1,0");
    let sums = against(trace, 0, &right).unwrap();
    assert_eq!((sums.peak_live, sums.peak_active), (1024, Some(1024)));
    let early = format!("{PAGE} alloc,7,0,1,0 free,7 done,7 alloc,8,0,1,0 alloc,9,512,1,0");
    let told = against(trace, 0, &early).unwrap_err();
    assert!(told.ends_with("block 7 was called done at operation 2, and is due at 3"), "{told}");
}

#[test]
fn a_pending_block_may_be_reused_behind_the_stream_that_uses_it() {
    let trace = "a,7,1,0 f,7,,0 a,8,1,0 c,7,,0";
    let reused = |free: &str, order: &str| {
        against(trace, 0, &format!("{PAGE} alloc,7,0,1,0 {free} {order} alloc,8,0,1,0"))
    };
    reused("free,7,1", "order,0,1").unwrap();
    let still_used =
        |free, order| reused(free, order).unwrap_err().contains("which another stream still uses");
    assert!(still_used("free,7,1", ""), "nothing waits");
    assert!(still_used("free,7,1", "order,0,1,4"), "only for what came before the free");
    assert!(still_used("free,7,1", "order,0,2"), "for another stream");
    assert!(still_used("free,7", "order,0,1"), "the log does not say who uses it");
    let told = reused("free,7,0", "").unwrap_err();
    assert!(told.ends_with("which is not what the trace tells"), "a stream of the trace: {told}");
    let told = against("a,7,1,0 f,7,,0", 0, &format!("{PAGE} alloc,7,0,1,0 free,7,1")).unwrap_err();
    assert!(told.ends_with("which is not what the trace tells"), "no other stream used it: {told}");
}

#[test]
fn active_counts_what_is_pending() {
    let trace = "a,7,1,0 a,1,1,0 f,7,,0 a,8,1,0 c,7,,0 a,9,1,0";
    let log = format!("{PAGE} alloc,7,0,1,0 alloc,1,512,1,0 free,7 alloc,8,1024,1,0 done,7 alloc,9,0,1,0");
    let sums = against(trace, 0, &log).unwrap();
    assert_eq!((sums.peak_live, sums.peak_active), (1536, Some(1536)));
    let trace = "a,7,600,0 a,1,1,0 f,7,,0 a,8,1,0 c,7,,0";
    let log = format!("{PAGE} alloc,7,0,600,0 alloc,1,1024,1,0 free,7 alloc,8,1536,1,0 done,7");
    let sums = against(trace, 0, &log).unwrap();
    assert_eq!((sums.peak_live, sums.peak_active), (1536, Some(2048)));
}

#[test]
fn nothing_is_done_before_the_device_has_come_to_it() {
    let trace = "a,7,1,0 f,7,,0 a,8,1,0 a,9,1,0";
    let log = |done: &str| {
        let events = ["alloc,7,0,1,0 free,7", "alloc,8,512,1,0", "alloc,9,1024,1,0", ""];
        let at = done.parse::<usize>().unwrap();
        let with = |(number, events): (usize, &&str)| match number == at {
            true => format!("{events} done,7"),
            false => (*events).to_owned(),
        };
        format!("{PAGE} {}", events.iter().enumerate().map(with).collect::<Vec<_>>().join(" "))
    };
    // Freed at operation 1 and two behind: due at 3, before the last allocation.
    assert!(against(trace, 2, &log("0")).unwrap_err().contains("called done at operation 2"));
    against(trace, 2, &log("1")).unwrap();
    against(trace, 1, &log("0")).unwrap();
    assert!(against(trace, 4, &log("3")).unwrap_err().contains("at the end of the log"));
    let waited = log("0").replace("done", "wait,event done");
    against(trace, 2, &waited).unwrap();
}

#[test]
fn a_real_device_that_was_waited_for_may_be_found_done_later() {
    let found = |order: &str, lag| {
        let trace =
            Trace::read("op,id,size,stream\na,7,1,0\nf,7,,0\na,8,1,0\na,9,1,0\na,6,1,0\nc,7,,0\n".as_bytes());
        let log = format!("{PAGE} alloc,7,0,1,0 {order} alloc,9,1024,1,0 alloc,6,1536,1,0");
        let lines = log.split_whitespace().enumerate().map(|(number, event)| format!("{number},{event}\n"));
        check(lines.collect::<String>().as_bytes(), Some(&trace.unwrap()), lag).is_ok()
    };
    let late = "free,7,1 wait,device alloc,8,512,1,0 done,7";
    assert!(found(late, None));
    assert!(!found(late, Some(0)), "the model tells at once");
    assert!(!found("free,7,1 alloc,8,512,1,0 done,7", None), "nobody waited");
}

#[test]
fn a_log_is_of_its_trace() {
    let trace = "a,7,1,0 a,8,1,0 f,7,,0 f,8,,0";
    let start = format!("{PAGE} alloc,7,0,1,0");
    let told = |events: &str| against(trace, 0, &format!("{start} {events}")).unwrap_err();
    assert!(told("alloc,9,512,1,0").contains("the trace frees block 7 here"));
    assert!(told("alloc,8,512,2,0").contains("the trace has Alloc { id: 8, bytes: 1, stream: 0 } here"));
    assert!(told("alloc,8,512,1,1").contains("the trace has"));
    assert!(told("alloc,8,512,1,0").contains("the log ends before the trace frees block 7"));
    assert!(told("alloc,8,512,1,0 free,8").contains("the trace frees block 7 here"));
    let sums = against(trace, 0, &format!("{start} alloc,8,512,1,0 free,7 free,8")).unwrap();
    assert_eq!(sums.oom, 0);
    // Block 8 was refused.
    let sums = against(trace, 0, &format!("{start} free,7")).unwrap();
    assert_eq!((sums.oom, sums.allocations), (1, 1));
}

#[test]
fn what_is_no_log_is_refused() {
    let refused =
        |text: &str| check(text.as_bytes(), None, None).unwrap_err().chain().last().unwrap().to_string();
    assert_eq!(refused("x\n"), "invalid digit found in string");
    assert_eq!(refused("0\n"), "the event's name is missing");
    assert_eq!(refused("0,create,1\n"), "no event is called \"create\" with 1 numbers");
    assert_eq!(refused("0,wait\n"), "what was waited for is missing");
    assert_eq!(refused("3,create,1,512\n3,create,2,512\n"), "event 3 comes after event 3");
    assert_eq!(refused("0,create,1,0\n"), "physical memory of no bytes");
    let all = u64::MAX;
    assert_eq!(refused(&format!("0,create,1,{all}\n1,create,2,512\n")), "more bytes than 64 bits count");
    assert_eq!(
        refused(&format!("0,create,1,512\n1,map,{all},1,512\n")),
        "a mapping beyond the address space"
    );
    assert_eq!(refused(&format!("0,alloc,1,512,{all},0\n")), "a block larger than 64 bits count");
    assert_eq!(refused(&format!("0,alloc,1,{all},512,0\n")), "a block beyond the address space");
}
