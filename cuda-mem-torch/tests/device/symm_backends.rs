//! Which backend is asked.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use cuda_mem_torch::Error;
use cuda_mem_torch::cuda_mem_ipc::symmetric::{self, Group, GroupOptions, NativeBackend, SymmetricBackend};
use cuda_mem_torch::symm::{Backends, DeviceType, MempoolAllocator, RegistryError, SymmetricMempool};

use crate::common::{World, child};
use crate::symm_fakes::{Call, Fake, LONG};

#[test]
fn the_backend_is_chosen_by_name_until_it_is_used() {
    let (world, backends) = (World::new(), Backends::new());
    let device = world.context.device();
    let (one, two) = (Fake::new("ONE"), Fake::new("TWO"));
    let none = backends.get_backend(DeviceType::CUDA).map(drop);
    assert!(matches!(none, Err(RegistryError::NoBackend { device_type: "cuda" })), "{none:?}");
    backends.register(DeviceType::CUDA, one.clone()).unwrap();
    backends.register(DeviceType::CUDA, two.clone()).unwrap();
    let again = backends.register(DeviceType::CUDA, Fake::new("ONE"));
    assert!(matches!(again, Err(RegistryError::BackendExists { .. })), "{again:?}");
    assert_eq!(backends.names(DeviceType::CUDA), ["ONE", "TWO"]);

    let unknown = backends.set_backend(DeviceType::CUDA, "THREE").unwrap_err();
    assert!(unknown.to_string().contains("THREE") && unknown.to_string().contains("TWO"), "{unknown}");
    let elsewhere = backends.set_backend(DeviceType::new("xpu"), "ONE").unwrap_err();
    assert!(elsewhere.to_string().contains("xpu"), "{elsewhere}");
    backends.set_backend(DeviceType::CUDA, "TWO").unwrap();
    backends.set_backend(DeviceType::CUDA, "ONE").unwrap();
    backends.set_backend(DeviceType::CUDA, "TWO").unwrap();

    let buffer = backends.empty(100, device, Some("group")).unwrap();
    let address = buffer.as_raw();
    let used = backends.set_backend(DeviceType::CUDA, "ONE");
    assert!(matches!(&used, Err(RegistryError::BackendInUse { used, .. }) if used == "TWO"), "{used:?}");
    backends.set_backend(DeviceType::CUDA, "TWO").unwrap();
    drop(buffer);
    let expected = [Call::Alloc(100, device.as_raw(), Some("group".to_owned())), Call::Free(address)];
    assert_eq!((one.calls(), two.calls()), (Vec::new(), expected.to_vec()));
}

/// The registry asked it under its lock.
#[test]
fn a_backend_that_is_asked_for_its_name_may_use_the_registry() {
    let (backends, fake) = (Backends::new(), Fake::new("ONE"));
    let registry = backends.clone();
    fake.on_name(move || drop(registry.names(DeviceType::CUDA)));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let registered = backends.register(DeviceType::CUDA, fake);
        let again = backends.register(DeviceType::CUDA, Fake::new("ONE"));
        let names = backends.names(DeviceType::CUDA);
        let chosen = backends.set_backend(DeviceType::CUDA, "ONE");
        tell.send((registered, again.is_err(), names, chosen, format!("{backends:?}"))).unwrap();
    });
    let (registered, is_refused, names, chosen, shown) = told.recv_timeout(LONG).expect("nobody waits");
    registered.unwrap();
    chosen.unwrap();
    assert!(is_refused && names == ["ONE"] && shown.contains("ONE"), "{names:?} {shown}");
}

#[test]
fn a_persistent_allocation_keeps_its_address() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, fake) = (world.context.device(), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, fake.clone()).unwrap();
    let buffer = backends.empty_persistent(100, device, None, 7).unwrap();
    let address = buffer.as_raw();
    let alive = backends.empty_persistent(100, device, None, 7);
    assert!(matches!(alive, Err(Error::Registry(RegistryError::PersistentAlive { id: 7 }))), "{alive:?}");
    drop(buffer);
    for (size, group) in [(200, None), (100, Some("group"))] {
        let differs = backends.empty_persistent(size, device, group, 7);
        assert!(
            matches!(differs, Err(Error::Registry(RegistryError::PersistentDiffers { id: 7, .. }))),
            "{differs:?}"
        );
    }
    assert_eq!(backends.empty_persistent(100, device, None, 7).unwrap().as_raw(), address);
    assert_ne!(backends.empty_persistent(100, device, None, 8).unwrap().as_raw(), address);
    let allocated = Call::Alloc(100, device.as_raw(), None);
    assert_eq!(fake.calls(), [allocated.clone(), allocated], "nothing was freed");
}

#[test]
fn a_persistent_allocation_that_was_freed_is_made_anew() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, fake) = (world.context.device(), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, fake.clone()).unwrap();
    let kept = backends.empty_persistent(100, device, None, 7).unwrap();
    // SAFETY: nobody uses it as memory.
    unsafe { fake.free(fake.find(kept.as_raw()).unwrap()) }.unwrap();
    let alive = backends.empty_persistent(100, device, None, 7);
    assert!(matches!(alive, Err(Error::Registry(RegistryError::PersistentAlive { id: 7 }))), "{alive:?}");
    let live = backends.empty(50, device, None).unwrap();
    assert_eq!(live.as_raw(), kept.as_raw());
    drop(kept);
    // Of another size: what it was is not there any more.
    let anew = backends.empty_persistent(200, device, None, 7).unwrap();
    assert_ne!(anew.as_raw(), live.as_raw());
    let address = anew.as_raw();
    drop(anew);
    assert_eq!(backends.empty_persistent(200, device, None, 7).unwrap().as_raw(), address);
    let allocated = |size| Call::Alloc(size, device.as_raw(), None);
    assert_eq!(fake.calls(), [allocated(100), Call::Free(live.as_raw()), allocated(50), allocated(200)]);
}

#[test]
fn others_go_on_while_a_backend_makes_a_persistent_allocation() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, fake) = (world.context.device(), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, fake.clone()).unwrap();
    let (inside, rounds) = (backends.clone(), AtomicU32::new(0));
    fake.on_alloc(move || {
        // The backend's own thread, and any other one.
        inside.get_backend(DeviceType::CUDA).unwrap();
        let again = inside.empty_persistent(100, device, None, 7);
        assert!(matches!(again, Err(Error::Registry(RegistryError::PersistentAlive { id: 7 }))), "{again:?}");
        match rounds.fetch_add(1, Ordering::Relaxed) {
            0 => Err(symmetric::Error::UnknownAddress { address: 0, backend: "a fake" }),
            _ => Ok(()),
        }
    });
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let failed = backends.empty_persistent(100, device, None, 7).map(drop);
        let address = backends.empty_persistent(100, device, None, 7).map(|buffer| buffer.as_raw());
        let again = backends.empty_persistent(100, device, None, 7).map(|buffer| buffer.as_raw());
        done.send((failed, address, again)).unwrap();
    });
    let (failed, address, again) = is_done.recv_timeout(LONG).expect("it waits for itself");
    assert!(
        matches!(failed, Err(Error::Symmetric(symmetric::Error::UnknownAddress { address: 0, .. }))),
        "{failed:?}"
    );
    assert_eq!(address.unwrap(), again.unwrap());
    assert_eq!(fake.calls(), [Call::Alloc(100, device.as_raw(), None)]);
}

#[test]
fn a_backend_that_panics_leaves_the_id_to_whoever_comes_next() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, fake) = (world.context.device(), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, fake.clone()).unwrap();
    let panics = AtomicBool::new(true);
    fake.on_alloc(move || match panics.swap(false, Ordering::Relaxed) {
        true => resume_unwind(Box::new("a backend that fails")),
        false => Ok(()),
    });
    let make = || backends.empty_persistent(100, device, None, 7);
    catch_unwind(AssertUnwindSafe(make)).unwrap_err();
    let address = make().unwrap().as_raw();
    assert_eq!(make().unwrap().as_raw(), address);
}

/// In the middle of another panic the second one would end the process.
#[test]
fn a_backend_that_panics_as_it_frees_does_so_for_nobody_else() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, fake) = (world.context.device(), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, fake.clone()).unwrap();
    fake.on_free(|| resume_unwind(Box::new("a backend that fails")));
    let buffer = || backends.empty(100, device, None).unwrap();
    let (first, second) = (buffer(), buffer());
    drop(first);
    let own = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = second;
        resume_unwind(Box::new("the program's own"));
    }));
    assert_eq!(own.unwrap_err().downcast_ref::<&str>(), Some(&"the program's own"));
}

/// A child that is forked while a thread has the registry's lock hears so, and does not wait.
#[test]
fn a_forked_child_takes_no_lock_of_the_registry() {
    let (world, backends, over) = (World::new(), Backends::new(), AtomicBool::new(false));
    let (device, stream) = (world.context.device(), world.new_stream());
    backends.register(DeviceType::CUDA, Fake::new("NCCL")).unwrap();
    let mempool = SymmetricMempool::new(&backends, DeviceType::CUDA);
    backends.register_mempool_allocator(DeviceType::CUDA, Arc::new(mempool)).unwrap();
    let mempool = backends.get_mempool_allocator(DeviceType::CUDA).unwrap();
    let own = SymmetricMempool::new(&backends, DeviceType::CUDA);
    let is_told = |result: Result<(), Error>| matches!(result, Err(Error::Registry(RegistryError::Forked)));
    let of_registry = |result: Result<(), RegistryError>| is_told(result.map_err(Error::from));
    let told = || {
        [
            of_registry(backends.register(DeviceType::CUDA, Fake::new("TWO"))),
            of_registry(backends.set_backend(DeviceType::CUDA, "NCCL")),
            of_registry(backends.get_backend(DeviceType::CUDA).map(drop)),
            of_registry(backends.get_mempool_allocator(DeviceType::CUDA).map(drop)),
            of_registry(backends.register_mempool_allocator(DeviceType::CUDA, mempool.clone())),
            is_told(backends.empty(100, device, None).map(drop)),
            is_told(backends.empty_persistent(100, device, None, 7).map(drop)),
            is_told(own.alloc(100, device, &stream).map(drop)),
            backends.names(DeviceType::CUDA).is_empty(),
            format!("{backends:?}{own:?}").contains("backend: None"),
        ]
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(backends.names(DeviceType::CUDA), ["NCCL"]);
                own.alloc(1, device, &stream).unwrap();
            }
        });
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..200 {
                child::forked(|| match told() {
                    told if told.iter().all(|is| *is) => Ok(()),
                    told => Err(format!("{told:?}\n")),
                });
            }
        }));
        over.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
}

#[test]
fn a_backend_that_has_ended_gives_its_place_to_one_of_its_name() {
    let (world, backends) = (World::new(), Backends::new());
    let (device, group) = (world.context.device(), None);
    let (one, two) = (Fake::new("ONE"), Fake::new("ONE"));
    backends.register(DeviceType::CUDA, Fake::new("ZERO")).unwrap();
    backends.register(DeviceType::CUDA, one.clone()).unwrap();
    backends.set_backend(DeviceType::CUDA, "ONE").unwrap();
    let of_one = backends.empty(100, device, group).unwrap();
    let kept = backends.empty_persistent(200, device, group, 7).unwrap().as_raw();
    let exists = backends.register(DeviceType::CUDA, two.clone());
    assert!(matches!(exists, Err(RegistryError::BackendExists { .. })), "{exists:?}");
    one.end();
    backends.register(DeviceType::CUDA, two.clone()).unwrap();
    assert_eq!(backends.names(DeviceType::CUDA), ["ZERO", "ONE"]);
    let used = backends.set_backend(DeviceType::CUDA, "ZERO");
    assert!(matches!(&used, Err(RegistryError::BackendInUse { used, .. }) if used == "ONE"), "{used:?}");
    one.calls();
    // At the same addresses, and the first and second of their backend too.
    let [of_two, second] = [(); 2].map(|()| backends.empty(100, device, group).unwrap());
    assert_eq!([of_two.as_raw(), second.as_raw()], [of_one.as_raw(), kept]);
    let anew = backends.empty_persistent(200, device, group, 7).unwrap();
    assert_ne!(anew.as_raw(), kept, "another buffer has it");
    assert_eq!(one.calls(), [Call::Free(kept)], "what was kept of the one before goes back there");
    two.calls();
    drop(of_one);
    assert_eq!((one.calls(), two.calls()), (vec![Call::Free(of_two.as_raw())], vec![]));
}

#[test]
fn a_persistent_allocation_goes_with_its_group() {
    let (world, backends, native) = (World::new(), Backends::new(), Arc::new(NativeBackend::new()));
    let directory = std::env::temp_dir().join(format!("cuda-mem-persistent-{}", std::process::id()));
    let group = Group::join(&world.context, "alone", 0, 1, &directory, &GroupOptions::default()).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    native.add_group(&group).unwrap();
    backends.register(DeviceType::CUDA, native.clone()).unwrap();
    let persistent = |size| backends.empty_persistent(size, group.device(), Some("alone"), 7).unwrap();
    let address = persistent(1000).as_raw();
    assert_eq!(persistent(1000).as_raw(), address);
    // SAFETY: nobody uses what was allocated.
    let removed = unsafe { native.remove_group("alone") }.unwrap();
    native.add_group(&removed).unwrap();
    let live = backends.empty(500, group.device(), Some("alone")).unwrap();
    assert_eq!(live.as_raw(), address);
    let anew = persistent(1000);
    assert_ne!(anew.as_raw(), address);
    assert_eq!(anew.rendezvous(None).unwrap().buffer_size(), 1000);
    assert_eq!(live.rendezvous(None).unwrap().buffer_size(), 500);
}
