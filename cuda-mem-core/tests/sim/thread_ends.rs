//! What is dropped by a thread's last destructors, when the driver may have left the thread: its default stream is another one then.

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{DeviceBuffer, Error, Stream};

use crate::common::gate::Gate;
use crate::rig::on_simulator;

thread_local! {
    /// What comes first is dropped last.
    static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
}

struct Late {
    stream: Stream,
    tell: Sender<(bool, bool)>,
    _buffer: DeviceBuffer<u8>,
}

impl Drop for Late {
    fn drop(&mut self) {
        // It is another stream now, and may be had as such. A panic would end the process.
        let is_refused = matches!(self.stream.is_idle(), Err(Error::WrongThread));
        let now = Stream::per_thread(self.stream.context());
        let is_another = now.is_ok_and(|now| now != self.stream && now.is_idle().unwrap_or(false));
        let _ = self.tell.send((is_refused, is_another));
    }
}

#[test]
fn memory_that_is_dropped_when_the_driver_has_left_the_thread_is_freed_behind_its_uses() {
    on_simulator(|_, context| {
        let (gate, done) =
            (Gate::new(context), DeviceBuffer::<u8>::zeroed(&Stream::new(context).unwrap(), 9).unwrap());
        let (tell, told) = channel();
        thread::scope(|threads| {
            let ends = threads.spawn({
                let (gate, done) = (&gate, &done);
                move || {
                    // Before the first call of the driver.
                    LATE.with(|_| ());
                    let stream = Stream::per_thread(context).unwrap();
                    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 9).unwrap();
                    gate.hold(&stream);
                    buffer.whole().copy_from(&stream, &done.whole()).unwrap();
                    LATE.set(Some(Late { stream, tell, _buffer: buffer }));
                }
            });
            thread::sleep(Duration::from_millis(20));
            gate.open();
            ends.join().unwrap();
        });
        assert_eq!(told.recv(), Ok((true, true)));
    });
}

#[test]
fn memory_of_a_thread_whose_last_record_failed_once_goes_back() {
    on_simulator(|sim, context| {
        let buffers = thread::scope(|threads| {
            let uses = threads.spawn(|| {
                let stream = Stream::per_thread(context).unwrap();
                let buffers = [(); 2].map(|()| DeviceBuffer::<u8>::zeroed(&stream, 9).unwrap());
                sim.fail_call("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
                drop(buffers[0].on(&stream).unwrap());
                sim.fail_call("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
                buffers[1].whole().fill_bytes(&stream, 1).unwrap();
                buffers
            });
            uses.join().unwrap()
        });
        drop(buffers);
        assert_eq!((context.driver().reclaim(), context.driver().release_failures()), (0, 0));
    });
}
