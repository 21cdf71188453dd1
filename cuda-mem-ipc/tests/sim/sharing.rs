//! Threads that use one connection, and signals that interrupt them.

use std::os::unix::thread::JoinHandleExt;
use std::thread;

use cuda_mem_ipc::transport::FIRST_KIND;

use crate::child;
use crate::other::{LIMIT, SHORT, both_ends};

#[test]
fn threads_send_and_receive_at_once_and_lose_nothing() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let (here, there) = both_ends();
    let (here, there) = (&here, &there);
    let received = thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for index in 0..EACH {
                    // Long enough that the queue is full most of the time.
                    let mut payload = vec![0; 8000];
                    payload[..8].copy_from_slice(&(thread * EACH + index).to_le_bytes());
                    here.send(FIRST_KIND, &payload, &[], LIMIT).unwrap();
                }
            });
        }
        let receive = || {
            let number = |payload: &[u8]| u64::from_le_bytes(*payload.first_chunk().unwrap());
            (0..EACH).map(|_| number(&there.recv(LIMIT).unwrap().payload)).collect::<Vec<_>>()
        };
        let receivers = (0..THREADS).map(|_| scope.spawn(receive)).collect::<Vec<_>>();
        receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect::<Vec<_>>()
    });
    for numbers in &received {
        // Each receiver sees the messages of each sender in their order.
        for sender in 0..THREADS {
            let own = numbers.iter().filter(|&number| number / EACH == sender);
            assert!(own.is_sorted());
        }
    }
    let mut all = received.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..THREADS * EACH));
}

extern "C" fn do_nothing(_: i32) {}

#[test]
fn signals_neither_end_a_wait_nor_make_it_longer() {
    if let Some(output) = child::again("sharing::signals_neither_end_a_wait_nor_make_it_longer", &[]) {
        return child::expect_silent_success(&output);
    }
    // SAFETY: a struct of integers, a set and a pointer, for which zeroes are values: without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = do_nothing as *const () as usize;
    // SAFETY: the handler does nothing.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
    let (here, there) = both_ends();
    let waiting = thread::spawn(move || {
        assert!(there.recv(SHORT).unwrap_err().is_timeout());
        there.send(FIRST_KIND, b"timed out", &[], LIMIT).unwrap();
        there.recv(LIMIT).unwrap().payload
    });
    let id = waiting.as_pthread_t();
    let interrupt = || {
        // SAFETY: the thread was not joined yet.
        assert_eq!(unsafe { libc::pthread_kill(id, libc::SIGUSR1) }, 0);
        thread::yield_now();
    };
    while here.recv(std::time::Duration::ZERO).is_err_and(|error| error.is_timeout()) {
        interrupt();
    }
    (0..1000).for_each(|_| interrupt());
    here.send(FIRST_KIND, b"through signals", &[], LIMIT).unwrap();
    assert_eq!(waiting.join().unwrap(), b"through signals");
}
