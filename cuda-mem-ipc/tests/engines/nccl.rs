//! NCCL.

use crate::alike;
use crate::rank::Library;

const NCCL: Library = Library::Nccl { code: 22_907 };

#[test]
fn ranks_read_and_write_each_others_memory() {
    alike!(NCCL, ranks_read_and_write_each_others_memory);
}

#[test]
fn signals_order_the_ranks_streams() {
    alike!(NCCL, signals_order_the_ranks_streams);
}

#[test]
fn what_all_have_freed_is_given_back() {
    alike!(NCCL, what_all_have_freed_is_given_back);
}

#[test]
fn freeing_waits_for_the_streams_work() {
    alike!(NCCL, freeing_waits_for_the_streams_work);
}

#[test]
fn a_call_of_all_does_not_wait_for_a_signal_that_comes_after_it() {
    alike!(NCCL, a_call_of_all_does_not_wait_for_a_signal_that_comes_after_it);
}

#[test]
fn memory_without_an_owner_is_its_callers() {
    alike!(NCCL, memory_without_an_owner_is_its_callers);
}

#[test]
fn ranks_that_differ_are_all_told() {
    alike!(NCCL, ranks_that_differ_are_all_told);
}

#[test]
fn it_ends_when_nothing_is_in_use() {
    alike!(NCCL, it_ends_when_nothing_is_in_use);
}

#[test]
fn arguments_are_checked_here() {
    alike!(NCCL, arguments_are_checked_here);
}

#[test]
fn an_owner_has_its_memory() {
    alike!(NCCL, an_owner_has_its_memory);
}
