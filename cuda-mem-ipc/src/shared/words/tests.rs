use cuda_mem_pool::cuda_mem_core::Driver;

use super::*;

#[test]
fn what_a_peer_sends_is_pinned_only_if_it_is_as_large_as_it_must_be() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    // The last one's pages would be there only when they are pinned.
    for (bytes, is_accepted) in
        [(1, false), (wire::SLOTS * SLOT, true), (4 * LARGEST_PAGE, false), (1 << 30, false)]
    {
        let mapping = SharedMapping::create(bytes).unwrap();
        let descriptor = mapping.as_fd().try_clone_to_owned().unwrap();
        let opened = Words::open(&context, descriptor, 1);
        assert_eq!(opened.is_ok(), is_accepted, "{bytes}");
        assert!(is_accepted || matches!(opened, Err(Error::Protocol { pid: 1, .. })), "{bytes}");
    }
}
