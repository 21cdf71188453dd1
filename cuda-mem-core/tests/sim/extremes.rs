//! Numbers and times at the ends of what their types hold.

use std::time::Duration;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{HostMapping, MappingOptions, RegisterOptions, Registered, SharedMapping};
use cuda_mem_core::ipc::{DeviceAllocation, ImportedMapping, MemoryHandle, OpenedMemory, SharedWords};
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::vmm::{AddressRange, CreateOptions, PhysicalMemory, ShareableMemory};
use cuda_mem_core::{
    DeviceBuffer, Fence, FenceLine, ManagedBuffer, PinnedBuffer, Stream, Uses, host::PinnedFlags,
};

use crate::rig::on_simulator;

const ENDS: [usize; 9] = [
    0,
    1,
    511,
    1 << 31,
    (1 << 62) - 1,
    isize::MAX as usize,
    isize::MAX as usize + 1,
    usize::MAX - 4095,
    usize::MAX,
];

#[test]
fn sizes_at_the_ends_are_refused_or_work() {
    on_simulator(|_, context| {
        let (stream, device) = (Stream::new(context).unwrap(), context.device());
        let buffer = DeviceBuffer::<u32>::zeroed(&stream, 100).unwrap();
        let shared = SharedMapping::create(4096).unwrap();
        let words = SharedWords::create(context, 4).unwrap();
        let range = AddressRange::reserve(device, 2 << 20, 0).unwrap();
        for size in ENDS {
            drop(DeviceBuffer::<u32>::uninit(&stream, size));
            drop(DeviceBuffer::<[u32; 0]>::uninit(&stream, size).map(|buffer| buffer.range(..).map(drop)));
            // What fits the address space and not the machine would be brought in until nothing is left.
            let beyond = size.max(1 << 62);
            drop(ManagedBuffer::<u64>::zeroed(context, beyond));
            drop(PinnedBuffer::<u64>::zeroed(context, beyond, PinnedFlags::default()));
            drop(SharedWords::create(context, beyond));
            drop(HostMapping::new(size, &MappingOptions::new()));
            drop(SharedMapping::create(size));
            drop(DeviceAllocation::new(context, size));
            drop(AddressRange::reserve(device, size, size));
            drop(PhysicalMemory::create(device, size, &CreateOptions::default()));
            drop(ShareableMemory::create(device, size, &CreateOptions::default()));
            let properties = PoolProperties {
                allocation_type: AllocationType::Pinned,
                location: MemoryLocation::Device(size as i32),
                shareable: false,
                max_size: size,
            };
            if let Ok(pool) = MemoryPool::create(context.driver(), &properties) {
                let _ = pool.trim_to(size);
                drop(pool.allocate(size.max(1 << 50), &stream));
            }
            let _ = (words.line(size).map(drop), words.line_of_one_stream(size).map(drop));
            for other in ENDS {
                let _ = buffer.range(size..other);
                let _ = buffer.range(size..=other);
                let _ = buffer.range((std::ops::Bound::Excluded(size), std::ops::Bound::Unbounded));
                let _ = (shared.read(size, &mut [0; 9]), shared.write(size, &[0; 9]), shared.word(size));
                let _ = shared.words::<3>(size);
                let _ = range.set_access(size, other, &[device], cuda_mem_core::vmm::Access::ReadWrite);
                let handle = MemoryHandle::from_parts([1; 64], size as u64, other as u64);
                drop(OpenedMemory::open(context, &handle));
                use std::os::fd::AsFd;
                let parts = [(shared.as_fd(), size), (shared.as_fd(), other)];
                drop(ImportedMapping::import_posix_fds(device, &parts, &[device]));
                if let Ok(stager) =
                    Stager::builder(context).slots(size).slot_bytes(other.max(1)).threads(1).build()
                {
                    stager.upload(&stream, &[7u32; 100], &buffer.whole()).unwrap();
                }
            }
            if let Ok(stager) = Stager::builder(context).threads(size).build() {
                stager.upload(&stream, &[7u32; 100], &buffer.whole()).unwrap();
            }
            drop(Registered::with_options(context, vec![0u8; 10_000], &RegisterOptions::new().threads(size)));
        }
    });
}

#[test]
fn times_at_the_ends_are_waited_for() {
    on_simulator(|_, context| {
        let (stream, line) = (Stream::new(context).unwrap(), FenceLine::new(context).unwrap());
        for time in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX), Duration::MAX] {
            context.driver().set_patience(time);
            let buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
            buffer.copy_from_slice(&stream, &[3; 1000]).unwrap();
            let uses = Uses::new();
            drop(uses.on(4096, &stream).unwrap());
            stream.synchronize().unwrap();
            uses.wait_for(time).unwrap();
            Fence::record(&stream).unwrap().synchronize(Some(Duration::MAX)).unwrap();
            line.record(&stream).unwrap().synchronize(Some(Duration::MAX)).unwrap();
            let unreached = line.fence(1 << 40).unwrap();
            if time < Duration::from_secs(1) {
                unreached.synchronize(Some(time)).unwrap_err();
            }
        }
    });
}
