//! NVSHMEM.

use crate::alike;
use crate::rank::Library;

const NVSHMEM: Library = Library::Nvshmem { minor: 4 };

#[test]
fn ranks_read_and_write_each_others_memory() {
    alike!(NVSHMEM, ranks_read_and_write_each_others_memory);
}

#[test]
fn signals_order_the_ranks_streams() {
    alike!(NVSHMEM, signals_order_the_ranks_streams);
}

#[test]
fn what_all_have_freed_is_given_back() {
    alike!(NVSHMEM, what_all_have_freed_is_given_back);
}

#[test]
fn freeing_waits_for_the_streams_work() {
    alike!(NVSHMEM, freeing_waits_for_the_streams_work);
}

#[test]
fn a_call_of_all_does_not_wait_for_a_signal_that_comes_after_it() {
    alike!(NVSHMEM, a_call_of_all_does_not_wait_for_a_signal_that_comes_after_it);
}

#[test]
fn memory_without_an_owner_is_its_callers() {
    alike!(NVSHMEM, memory_without_an_owner_is_its_callers);
}

#[test]
fn ranks_that_differ_are_all_told() {
    alike!(NVSHMEM, ranks_that_differ_are_all_told);
}

#[test]
fn it_ends_when_nothing_is_in_use() {
    alike!(NVSHMEM, it_ends_when_nothing_is_in_use);
}

#[test]
fn arguments_are_checked_here() {
    alike!(NVSHMEM, arguments_are_checked_here);
}

#[test]
fn an_owner_has_its_memory() {
    alike!(NVSHMEM, an_owner_has_its_memory);
}
