//! Tensors that are lent and borrowed.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_core::raw_pool::{self, AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::{DeviceBuffer, MemorySource, PinnedBuffer, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::{
    DeviceMemoryResource, MemoryResource, PinnedCachingAllocator, PinnedMemoryResource,
};
use cuda_mem_torch::dlpack::{
    Borrowed, DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, DLDataType, DLDevice, DLManagedTensor,
    DLManagedTensorVersioned, DLPackVersion, DLTensor, DlpackError, FLAG_READ_ONLY, Lend, Tensor,
    consumer_stream,
};

use crate::common::World;
use crate::common::gate::Gate;

/// A tensor of somebody else, who counts how often it is given back.
pub(crate) struct Foreign {
    versioned: DLManagedTensorVersioned,
    legacy: DLManagedTensor,
    shape: Vec<i64>,
    strides: Vec<i64>,
    given_back: Arc<AtomicUsize>,
}

unsafe extern "C" fn count_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: a live structure.
    count(unsafe { (*managed).manager_ctx });
}

unsafe extern "C" fn count_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: a live structure.
    count(unsafe { (*managed).manager_ctx });
}

fn count(context: *mut c_void) {
    // SAFETY: the context is the counter, which the test keeps.
    let counter = unsafe { &*context.cast::<AtomicUsize>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

impl Foreign {
    pub(crate) fn new(address: u64, shape: &[i64]) -> Box<Self> {
        let given_back = Arc::new(AtomicUsize::new(0));
        let context = Arc::as_ptr(&given_back).cast_mut().cast::<c_void>();
        let tensor = || DLTensor {
            data: ptr::with_exposed_provenance_mut(address as usize),
            device: DLDevice { device_type: DL_CUDA, device_id: 0 },
            ndim: shape.len() as i32,
            dtype: DLDataType::F32,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let version = DLPackVersion { major: 1, minor: 3 };
        let (versioned, legacy) = (
            DLManagedTensorVersioned {
                version,
                manager_ctx: context,
                deleter: Some(count_versioned),
                flags: 0,
                dl_tensor: tensor(),
            },
            DLManagedTensor { dl_tensor: tensor(), manager_ctx: context, deleter: Some(count_legacy) },
        );
        let mut foreign =
            Box::new(Self { versioned, legacy, shape: shape.to_vec(), strides: Vec::new(), given_back });
        foreign.versioned.dl_tensor.shape = foreign.shape.as_mut_ptr();
        foreign.legacy.dl_tensor.shape = foreign.shape.as_mut_ptr();
        foreign
    }

    fn with_strides(mut self: Box<Self>, strides: &[i64]) -> Box<Self> {
        self.strides = strides.to_vec();
        self.versioned.dl_tensor.strides = self.strides.as_mut_ptr();
        self
    }

    pub(crate) fn given_back(&self) -> usize {
        self.given_back.load(Ordering::SeqCst)
    }

    pub(crate) fn borrow(&mut self, world: &World, stream: Option<&Stream>) -> Result<Borrowed, DlpackError> {
        // SAFETY: a tensor as the standard says, or one that is refused before it is used.
        unsafe { Borrowed::from_versioned(&world.context, &raw mut self.versioned, stream) }
    }
}

pub(crate) fn versioned<O: Lend>(world: &World, tensor: Tensor<O>, stream: Option<&Stream>) -> Borrowed {
    let lent = tensor.into_versioned(stream).unwrap();
    // SAFETY: lent just now, and taken over once.
    unsafe { Borrowed::from_versioned(&world.context, lent, stream) }.unwrap()
}

#[test]
fn a_device_buffer_is_lent_and_given_back() {
    let world = World::new();
    let buffer = DeviceBuffer::<f32>::zeroed(&world.stream, 24).unwrap();
    let address = buffer.as_raw();
    let tensor = Tensor::new(buffer, DLDataType::F32, &[2, 3, 4]).unwrap();
    let borrowed = versioned(&world, tensor, Some(&world.new_stream()));
    assert_eq!((borrowed.address(), borrowed.bytes()), (address, 96));
    assert_eq!((borrowed.shape(), borrowed.strides()), (&[2, 3, 4][..], &[12, 4, 1][..]));
    assert_eq!(borrowed.device(), DLDevice { device_type: DL_CUDA, device_id: 0 });
    assert_eq!((borrowed.dtype(), borrowed.is_read_only()), (DLDataType::F32, false));
    drop(borrowed);
}

#[test]
fn the_older_form_is_lent_and_borrowed_too() {
    let world = World::new();
    let buffer = DeviceBuffer::<i64>::zeroed(&world.stream, 5).unwrap();
    let address = buffer.as_raw();
    let theirs = world.new_stream();
    let lent = Tensor::new(buffer, DLDataType::I64, &[5]).unwrap().into_legacy(Some(&theirs)).unwrap();
    // SAFETY: lent just now, and taken over once.
    let borrowed = unsafe { Borrowed::from_legacy(&world.context, lent, Some(&theirs)) }.unwrap();
    assert_eq!((borrowed.address(), borrowed.bytes()), (address, 40));
    let mut foreign = Foreign::new(address, &[5]);
    // SAFETY: as the standard says; the memory is still there.
    let again = unsafe { Borrowed::from_legacy(&world.context, &raw mut foreign.legacy, None) }.unwrap();
    assert_eq!(again.bytes(), 20);
    drop(again);
    assert_eq!(foreign.given_back(), 1);
}

#[test]
fn pinned_memory_is_lent_as_pinned_memory() {
    let world = World::new();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&world.context, 4096, PinnedFlags::default()).unwrap();
    pinned.as_mut_slice().unwrap()[7] = 42;
    let borrowed = versioned(&world, Tensor::new(pinned, DLDataType::U8, &[4096]).unwrap(), None);
    assert_eq!(borrowed.device(), DLDevice { device_type: DL_CUDA_HOST, device_id: 0 });
    let byte = ptr::with_exposed_provenance::<u8>(borrowed.address() as usize).wrapping_add(7);
    // SAFETY: pinned memory of 4096 bytes, which nobody writes.
    assert_eq!(unsafe { byte.read() }, 42);
    let block = PinnedCachingAllocator::new(&world.context).allocate(100).unwrap();
    let address = block.as_ptr() as u64;
    let borrowed =
        versioned(&world, Tensor::new(block, DLDataType::U8, &[10, 10]).unwrap(), Some(&world.new_stream()));
    assert_eq!((borrowed.address(), borrowed.bytes()), (address, 100));
}

/// A pool of managed memory, which frees what comes from it.
#[derive(Debug)]
struct Managed(#[allow(dead_code, reason = "lives as long as its memory")] MemoryPool);

// SAFETY: the driver gives memory of the pool to nobody else until it is freed here.
unsafe impl MemorySource for Managed {
    unsafe fn deallocate(&self, address: u64, _: Layout, stream: &Stream) -> cuda_mem_core::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { raw_pool::free(address, stream) }
    }
}

fn managed(world: &World) -> DeviceBuffer<u8> {
    let (allocation_type, location) = (AllocationType::Managed, MemoryLocation::None);
    let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
    let pool = MemoryPool::create(world.driver, &properties).unwrap();
    let address = pool.allocate(64, &world.stream).unwrap();
    let (layout, source) = (Layout::from_size_align(64, 256).unwrap(), Arc::new(Managed(pool)));
    // SAFETY: allocated above on this stream, from this pool.
    unsafe { DeviceBuffer::from_source(&world.stream, address, layout, source) }.unwrap()
}

/// A resource's memory is a device buffer wherever it lies: what the tensor says is what the driver knows.
#[test]
fn memory_of_resources_is_lent_as_what_it_is() {
    let world = World::new();
    let lent = |buffer: DeviceBuffer<u8>| {
        let tensor = Tensor::new(buffer, DLDataType::U8, &[64]).unwrap();
        versioned(&world, tensor, Some(&world.new_stream())).device()
    };
    let own = world.context.device().as_raw();
    let device = DeviceMemoryResource::new(&world.context, None).unwrap();
    let block = device.allocate(64, &world.stream).unwrap().into_buffer().unwrap();
    assert_eq!(lent(block), DLDevice { device_type: DL_CUDA, device_id: own });
    let cached = PinnedCachingAllocator::new(&world.context);
    let block = MemoryResource::allocate(&cached, 64, &world.stream).unwrap().into_buffer().unwrap();
    assert_eq!(lent(block), DLDevice { device_type: DL_CUDA_HOST, device_id: 0 });
    if world.driver.version() < 13000 {
        return;
    }
    let pinned = PinnedMemoryResource::new(&world.context, None).unwrap();
    let block = pinned.allocate(64, &world.stream).unwrap().into_buffer().unwrap();
    assert_eq!(lent(block), DLDevice { device_type: DL_CUDA_HOST, device_id: 0 });
    assert_eq!(lent(managed(&world)), DLDevice { device_type: DL_CUDA_MANAGED, device_id: own });
}

#[test]
fn the_consumers_stream_is_ordered_behind_the_producers_work() {
    let world = World::new();
    let (producer, consumer) = (world.new_stream(), world.new_stream());
    let gate = Gate::new(&world.context);
    let text = vec![7u8; 4096];
    let (buffer, source) = (
        DeviceBuffer::<u8>::zeroed(&producer, 4096).unwrap(),
        DeviceBuffer::from_slice(&producer, &text).unwrap(),
    );
    gate.hold(&producer);
    buffer.whole().copy_from(&producer, &source.whole()).unwrap();
    let borrowed = versioned(&world, Tensor::new(buffer, DLDataType::U8, &[4096]).unwrap(), Some(&consumer));
    assert!(!consumer.is_idle().unwrap(), "it waits for the copy");
    let target = DeviceBuffer::<u8>::zeroed(&consumer, 4096).unwrap();
    let used = borrowed.on(&consumer).unwrap();
    let to = target.on(&consumer).unwrap();
    // SAFETY: memory of that many bytes on both sides, used on this stream alone.
    unsafe { cuda_mem_core::copy::memcpy_async(&consumer, to.address(), used.address(), 4096) }.unwrap();
    drop((used, to));
    gate.open();
    drop(borrowed);
    assert_eq!(target.to_vec(&consumer).unwrap(), text);
}

#[test]
fn what_is_given_back_is_released_behind_the_consumers_work() {
    let world = World::new();
    let (producer, consumer) = (world.new_stream(), world.new_stream());
    let gate = Gate::new(&world.context);
    let text = vec![7u8; 4096];
    let target = DeviceBuffer::<u8>::zeroed(&consumer, 4096).unwrap();
    let buffer = DeviceBuffer::from_slice(&producer, &text).unwrap();
    let address = buffer.as_raw();
    let lent = Tensor::new(buffer, DLDataType::U8, &[4096]).unwrap().into_versioned(Some(&consumer)).unwrap();
    gate.hold(&consumer);
    {
        let to = target.on(&consumer).unwrap();
        // SAFETY: memory of that many bytes on both sides. What is lent lives until its deleter is called, and then as long as this stream
        // works.
        unsafe { cuda_mem_core::copy::memcpy_async(&consumer, to.address(), address, 4096) }.unwrap();
    }
    // SAFETY: lent just now.
    let deleter = unsafe { (*lent).deleter }.unwrap();
    // SAFETY: as above, and given back once.
    unsafe { deleter(lent) };
    // Memory that were free by now would serve this.
    let other = DeviceBuffer::from_slice(&world.new_stream(), &[1u8; 4096]).unwrap();
    gate.open();
    assert_eq!(target.to_vec(&consumer).unwrap(), text);
    drop(other);
}

#[test]
fn numbers_of_streams_are_those_of_the_standard() {
    let world = World::new();
    // SAFETY: no handles but that of a live stream.
    let of = |stream| unsafe { consumer_stream(&world.context, stream) };
    let legacy = Stream::legacy(&world.context).unwrap();
    assert_eq!(of(None).unwrap().unwrap(), legacy);
    assert_eq!(of(Some(1)).unwrap().unwrap(), legacy);
    let per_thread = of(Some(2)).unwrap_err();
    assert!(matches!(per_thread, DlpackError::PerThread), "{per_thread}");
    let words = per_thread.to_string();
    assert!(words.contains("per-thread default stream is not supported") && words.contains("-1 (no order)"));
    assert!(of(Some(-1)).unwrap().is_none());
    for none in [0, -2, i64::MIN] {
        assert!(matches!(of(Some(none)), Err(DlpackError::Stream { stream }) if stream == none), "{none}");
    }
    let own = world.new_stream();
    let handle = own.as_raw() as usize as i64;
    assert_eq!(of(Some(handle)).unwrap().unwrap(), own);
}

#[test]
fn what_does_not_fit_comes_back_with_the_reason() {
    let world = World::new();
    let buffer = || DeviceBuffer::<u8>::zeroed(&world.stream, 100).unwrap();
    let refused = |dtype, shape: &[i64]| Tensor::new(buffer(), dtype, shape).unwrap_err();
    let beyond = refused(DLDataType::F32, &[26]);
    assert!(matches!(beyond.error, DlpackError::Beyond { needed: 104, len: 100 }), "{beyond}");
    assert_eq!(beyond.owner.len(), 100);
    let negative = refused(DLDataType::U8, &[1, -5]).error;
    assert!(matches!(negative, DlpackError::Extent { what: "size", dimension: 1, value: -5 }), "{negative}");
    assert!(matches!(refused(DLDataType::U8, &[i64::MAX, 3]).error, DlpackError::TooLarge));
    assert!(matches!(refused(DLDataType::F64, &[i64::MAX]).error, DlpackError::TooLarge));
    assert!(matches!(refused(DLDataType::U8, &[1; 65]).error, DlpackError::Dimensions { ndim: 65 }));
    for bad in [DLDataType { bits: 4, ..DLDataType::U8 }, DLDataType { lanes: 0, ..DLDataType::U8 }] {
        assert!(matches!(refused(bad, &[1]).error, DlpackError::Type { .. }), "{bad:?}");
    }
    let read_only = Tensor::new(buffer(), DLDataType::U8, &[100]).unwrap().read_only();
    let refused = read_only.into_legacy(None).unwrap_err();
    assert!(matches!(refused.error, DlpackError::ReadOnly));
    let borrowed = versioned(&world, refused.owner, None);
    assert!(borrowed.is_read_only());
    let empty = Tensor::new(DeviceBuffer::<u8>::zeroed(&world.stream, 0).unwrap(), DLDataType::F32, &[3, 0]);
    assert_eq!(versioned(&world, empty.unwrap(), None).bytes(), 0);
    assert_eq!(Tensor::new(buffer(), DLDataType::U8, &[]).unwrap().into_owner().len(), 100);
}

/// Each is refused, and given back once all the same.
#[test]
fn odd_tensors_are_refused_and_given_back_once() {
    let world = World::new();
    let buffer = DeviceBuffer::<f32>::zeroed(&world.stream, 16).unwrap();
    world.stream.synchronize().unwrap();
    let good = || Foreign::new(buffer.as_raw(), &[4, 4]);
    let refuse = |mut foreign: Box<Foreign>| {
        let error = foreign.borrow(&world, None).map(drop).unwrap_err();
        assert_eq!(foreign.given_back(), 1, "{error}");
        error
    };
    let odd = |change: fn(&mut DLManagedTensorVersioned)| {
        let mut foreign = good();
        change(&mut foreign.versioned);
        refuse(foreign)
    };
    let version = odd(|managed| managed.version.major = 2);
    assert!(matches!(version, DlpackError::Version { major: 2, minor: 3 }), "{version}");
    assert!(matches!(odd(|managed| managed.dl_tensor.ndim = -1), DlpackError::Dimensions { ndim: -1 }));
    assert!(matches!(odd(|managed| managed.dl_tensor.ndim = 65), DlpackError::Dimensions { ndim: 65 }));
    let shape = odd(|managed| managed.dl_tensor.shape = ptr::null_mut());
    assert!(matches!(shape, DlpackError::Missing { what: "shape", .. }), "{shape}");
    let data = odd(|managed| managed.dl_tensor.data = ptr::null_mut());
    assert!(matches!(data, DlpackError::Missing { what: "data", .. }), "{data}");
    assert!(matches!(odd(|managed| managed.dl_tensor.byte_offset = u64::MAX), DlpackError::TooLarge));
    assert!(matches!(odd(|managed| managed.dl_tensor.dtype.bits = 6), DlpackError::Type { bits: 6, .. }));
    let cpu = odd(|managed| managed.dl_tensor.device.device_type = DL_CPU);
    assert!(matches!(cpu, DlpackError::Device { device_type: DL_CPU, .. }), "{cpu}");
    for id in [-1, 1000] {
        let mut foreign = good();
        foreign.versioned.dl_tensor.device.device_id = id;
        assert!(matches!(refuse(foreign), DlpackError::Device { device_id, .. } if device_id == id));
    }
    let host = odd(|managed| managed.dl_tensor.device.device_type = DL_CUDA_HOST);
    assert!(matches!(host, DlpackError::Memory { found: "device memory", .. }), "{host}");
    let unknown = refuse(Foreign::new(4096, &[4]));
    assert!(matches!(unknown, DlpackError::Memory { address: 4096, .. }), "{unknown}");
    // No machine has as much in one piece, whatever comes behind the buffer.
    let memory = DeviceAllocation::new(&world.context, 2 << 20).unwrap();
    let beyond = refuse(Foreign::new(memory.as_raw(), &[1 << 40]));
    assert!(matches!(beyond, DlpackError::Beyond { needed: 0x400_0000_0000, .. }), "{beyond}");
    let negative = refuse(good().with_strides(&[-4, 1]));
    assert!(matches!(negative, DlpackError::Extent { what: "stride", value: -4, .. }), "{negative}");
    assert!(matches!(refuse(good().with_strides(&[i64::MAX, 1])), DlpackError::TooLarge));
    // SAFETY: null is refused.
    let null = unsafe { Borrowed::from_versioned(&world.context, ptr::null_mut(), None) };
    assert!(matches!(null.map(drop), Err(DlpackError::Null)));
    // SAFETY: null is refused.
    let null = unsafe { Borrowed::from_legacy(&world.context, ptr::null_mut(), None) };
    assert!(matches!(null.map(drop), Err(DlpackError::Null)));
}

#[test]
fn what_is_good_is_taken_as_it_is() {
    let world = World::new();
    let buffer = DeviceBuffer::<f32>::zeroed(&world.stream, 64).unwrap();
    world.stream.synchronize().unwrap();
    let mut foreign = Foreign::new(buffer.as_raw(), &[2, 3]).with_strides(&[10, 2]);
    foreign.versioned.dl_tensor.byte_offset = 16;
    foreign.versioned.flags = FLAG_READ_ONLY;
    let borrowed = foreign.borrow(&world, None).unwrap();
    assert_eq!((borrowed.address(), borrowed.bytes()), (buffer.as_raw() + 16, (10 + 4 + 1) * 4));
    assert_eq!(borrowed.strides(), [10, 2]);
    assert!(borrowed.is_read_only());
    drop(borrowed);
    assert_eq!(foreign.given_back(), 1);
    // No dimensions are one element; a size of 0 needs no memory; a deleter may be missing.
    assert_eq!(Foreign::new(buffer.as_raw(), &[]).borrow(&world, None).unwrap().bytes(), 4);
    let mut nothing = Foreign::new(0, &[0, 7]);
    nothing.versioned.deleter = None;
    drop(nothing.borrow(&world, None).unwrap());
    assert_eq!(nothing.given_back(), 0);
}

/// A buffer whose end panics, with a payload whose own end does too: nothing unwinds into the borrower.
#[test]
fn a_buffer_that_panics_as_it_comes_back_does_so_for_no_borrower() {
    struct Twice;
    impl Drop for Twice {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("again"));
        }
    }
    struct Fails;
    impl Drop for Fails {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(Twice));
        }
    }
    // SAFETY: it has no memory.
    unsafe impl Lend for Fails {
        fn memory(&self) -> (u64, usize) {
            (0, 0)
        }

        fn device(&self) -> Result<DLDevice, DlpackError> {
            Ok(DLDevice { device_type: DL_CUDA_HOST, device_id: 0 })
        }

        fn hand_to(&self, _stream: &Stream) -> Result<(), DlpackError> {
            Ok(())
        }

        fn wait(&self) -> Result<(), DlpackError> {
            Ok(())
        }
    }
    let tensor = || Tensor::new(Fails, DLDataType::F32, &[0]).map_err(|refused| refused.error).unwrap();
    let lent = tensor().into_versioned(None).map_err(|refused| refused.error).unwrap();
    // SAFETY: a structure that was lent.
    let delete = unsafe { (*lent).deleter }.unwrap();
    // SAFETY: its deleter, called once.
    unsafe { delete(lent) };
    let lent = tensor().into_legacy(None).map_err(|refused| refused.error).unwrap();
    // SAFETY: as above.
    let delete = unsafe { (*lent).deleter }.unwrap();
    // SAFETY: as above.
    unsafe { delete(lent) };
}
