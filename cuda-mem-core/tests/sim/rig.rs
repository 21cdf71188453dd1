//! A simulator of a test's own, and what its log says about order.

use cuda_mem_core::sys::{CUresult, Table};
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::{Builder, Log, Record, Sim};

/// Runs a test on a simulator of its own. At its end nothing may be left of it, and nothing may have been misused.
pub(crate) fn on_simulator(test: impl FnOnce(&Sim, &Context)) {
    on(Sim::builder(), test);
}

/// As [`on_simulator`], with a machine to choose.
pub(crate) fn on(builder: Builder, test: impl FnOnce(&Sim, &Context)) {
    let sim = builder.record(true).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    test(&sim, &context);
    drop(context);
    expect_clean(&sim);
}

pub(crate) fn expect_clean(sim: &Sim) {
    let misuse: Vec<_> = sim.misuse().iter().map(ToString::to_string).collect();
    assert!(misuse.is_empty(), "misused: {misuse:#?}");
    let leaks: Vec<_> = sim.leaks().iter().map(ToString::to_string).collect();
    assert!(leaks.is_empty(), "leaked: {leaks:#?}");
}

/// A logged argument's value, as the log writes it.
pub(crate) fn argument<'r>(record: &'r Record, name: &str) -> &'r str {
    let value =
        record.arguments.split(", ").find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {record}"))
}

/// The position of the only call of a function that succeeded.
pub(crate) fn position(records: &[Record], function: &str) -> usize {
    let succeeded = |record: &Record| record.function == function && record.result == CUresult::CUDA_SUCCESS;
    let found: Vec<usize> = (0..records.len()).filter(|&index| succeeded(&records[index])).collect();
    assert_eq!(found.len(), 1, "calls of {function}:\n{}", text(records));
    found[0]
}

/// Before the call at `before`, `later` was made to wait for all that `earlier` had been given after the call at `after`.
pub(crate) fn waited(
    records: &[Record],
    earlier: &Stream,
    later: &Stream,
    after: usize,
    before: usize,
) -> bool {
    let (earlier, later) = (earlier.id().as_raw(), later.id().as_raw());
    (after..before).any(|recorded| {
        let record = &records[recorded];
        record.function == "cuEventRecord"
            && record.stream == earlier
            && records[recorded..before].iter().any(|wait| {
                wait.function == "cuStreamWaitEvent"
                    && wait.stream == later
                    && argument(wait, "h_event") == argument(record, "h_event")
            })
    })
}

/// Between the two calls the host waited for `stream`, was told that it has no work, or waited for an event that was recorded in it after
/// the first.
pub(crate) fn host_waited(records: &[Record], stream: &Stream, after: usize, before: usize) -> bool {
    let stream = stream.id().as_raw();
    (after..before).any(|index| {
        let record = &records[index];
        let event = || argument(record, "h_event");
        let waits =
            |wait: &Record| wait.function == "cuEventSynchronize" && argument(wait, "h_event") == event();
        record.stream == stream
            && (record.function == "cuStreamSynchronize"
                || (record.function == "cuStreamQuery" && record.result == CUresult::CUDA_SUCCESS)
                || (record.function == "cuEventRecord" && records[index..before].iter().any(waits)))
    })
}

/// The log, to be read by a human.
pub(crate) fn text(records: &[Record]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

/// The records that `work` makes.
pub(crate) fn log_of(log: &Log, work: impl FnOnce()) -> Vec<Record> {
    log.clear();
    work();
    log.records()
}

/// A buffer's memory, used on `stream` by a copy that the log shows.
pub(crate) fn read_on(
    buffer: &cuda_mem_core::DeviceBuffer<u8>,
    stream: &Stream,
    target: &cuda_mem_core::DeviceBuffer<u8>,
) {
    target.whole().copy_from(stream, &buffer.whole()).unwrap();
}

/// The calling thread's current context, as a number.
pub(crate) fn current(table: &Table) -> usize {
    let mut context = std::ptr::null_mut();
    // SAFETY: one handle to write.
    assert_eq!(unsafe { table.cuCtxGetCurrent().unwrap()(&mut context) }, CUresult::CUDA_SUCCESS);
    context.addr()
}
