//! NCCL.

use crate::rank::Library;

crate::alike! {
    Library::Nccl { code: 22_907 };
    ranks_read_and_write_each_others_memory,
    signals_order_the_ranks_streams,
    what_all_have_freed_is_given_back,
    freeing_waits_for_the_streams_work,
    a_memory_pool_is_served,
    ranks_that_differ_are_all_told,
    it_ends_when_nothing_is_in_use,
    arguments_are_checked_here,
    it_is_chosen_by_its_name,
}
