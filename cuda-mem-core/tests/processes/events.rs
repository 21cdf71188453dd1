//! Events between processes.

use cuda_mem_core::ipc::{DeviceAllocation, EventHandle, InterprocessEvent, OpenedEvent, OpenedMemory};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::legacy::{decode, encode};
use crate::{download, upload};

const LEN: usize = 100_000;

fn consumer(first: &Channel) {
    let world = World::new();
    let memory = OpenedMemory::open(&world.context, &decode(&first.receive())).unwrap();
    let handle = EventHandle::from_bytes(first.receive().bytes.try_into().unwrap());
    let event = OpenedEvent::open(&world.context, &handle).unwrap();
    assert!(!event.event().is_complete().unwrap());
    let stream = world.new_stream();
    stream.wait(event.event()).unwrap();
    assert!(!stream.is_idle().unwrap());
    first.send(b"waiting", &[]);
    let address = memory.on(&stream).unwrap().address();
    first.send_words(&[checksum(&download(&stream, address, LEN))]);
    // And back: an event that was opened is recorded as well.
    upload(&stream, address, &pattern(LEN, 12));
    stream.record(event.event()).unwrap();
    first.send(b"recorded", &[]);
    assert_eq!(first.receive().bytes, b"done");
}

#[test]
fn an_event_orders_the_work_of_two_processes() {
    pair::play(test_name!(), &[("consumer", consumer)], |cast| {
        let world = World::new();
        let (stream, event) = (world.new_stream(), InterprocessEvent::new(&world.context).unwrap());
        let memory = DeviceAllocation::new(&world.context, LEN).unwrap();
        upload(&stream, memory.as_raw(), &pattern(LEN, 10));
        let bytes = cuda_mem_core::DeviceBuffer::from_slice(&stream, &pattern(LEN, 11)).unwrap();
        let gate = Gate::before(&stream);
        {
            let (from, to) = (bytes.on_read(&stream).unwrap(), memory.on(&stream).unwrap());
            // SAFETY: memory that both keep until the stream has run this.
            unsafe { cuda_mem_core::copy::memcpy_async(&stream, to.address(), from.address(), LEN) }.unwrap();
        }
        stream.record(event.event()).unwrap();
        let consumer = cast.start("consumer");
        // SAFETY: the memory stays until the peer has closed what it opened.
        consumer.send(&encode(&unsafe { memory.handle(0..LEN) }.unwrap()), &[]);
        // SAFETY: the event stays until the consumer has dropped its own.
        consumer.send(unsafe { event.handle() }.unwrap().as_bytes(), &[]);
        assert_eq!(consumer.receive().bytes, b"waiting");
        gate.open();
        assert_eq!(consumer.receive().words(), [checksum(&pattern(LEN, 11))]);
        assert_eq!(consumer.receive().bytes, b"recorded");
        event.event().synchronize().unwrap();
        let back = download(&stream, memory.as_raw(), LEN);
        record!("what came back", &back);
        assert!(back == pattern(LEN, 12));
        consumer.send(b"done", &[]);
        consumer.finish();
    });
}

#[test]
fn handles_of_events_are_checked() {
    let world = World::new();
    let own = InterprocessEvent::new(&world.context).unwrap();
    // SAFETY: nobody is given it.
    let own = unsafe { own.handle() }.unwrap();
    let own = OpenedEvent::open(&world.context, &own);
    record!("of this process", &own);
    assert_eq!(own.unwrap_err().code().map(|code| code.0), Some(201));
    let zeros = OpenedEvent::open(&world.context, &EventHandle::from_bytes([0; 64]));
    record!("zeros", &zeros);
    assert_eq!(zeros.unwrap_err().code().map(|code| code.0), Some(205));
}
