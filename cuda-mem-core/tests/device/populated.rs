//! Registration of memory whose pages several threads bring in before.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_core::host::{
    CancelToken, FileMapping, HostMapping, HostMemory, MappingOptions, Progress, RegisterFlags,
    RegisterOptions, Registered,
};
use cuda_mem_core::pointer::{self, MemoryKind};
use cuda_mem_core::{DeviceBuffer, Error, RegisteredBy, scope};

use crate::common::capture::{Capture, GLOBAL};
use crate::common::files::TempFile;
use crate::common::outcome::record;
use crate::common::{World, pattern};

/// Several pieces of those that threads take.
const LEN: usize = (100 << 20) + 17;

fn mapping() -> HostMapping {
    HostMapping::new(LEN, &MappingOptions::new()).unwrap()
}

fn kind(world: &World, memory: &impl HostMemory) -> MemoryKind {
    pointer::attributes(&world.context, memory.as_ptr().addr() as u64).unwrap().kind
}

#[test]
fn it_is_one_registration_with_any_number_of_threads() {
    let world = World::new();
    for threads in [0, 1, 3, 1000] {
        let options = RegisterOptions::new().threads(threads).flags(RegisterFlags::MAPPED);
        let registered = Registered::with_options(&world.context, mapping(), &options).unwrap();
        assert_eq!(registered.flags(), RegisterFlags::MAPPED);
        let attributes =
            pointer::attributes(&world.context, registered.as_ptr().addr() as u64 + (50 << 20)).unwrap();
        assert_eq!((attributes.kind, attributes.range_size), (MemoryKind::Host, LEN), "{threads}");
        let report = registered.memory().unwrap().residency().unwrap();
        assert_eq!(report.resident, report.mapped, "{threads}");
        registered.close().unwrap();
    }
}

#[test]
fn owners_of_all_kinds_keep_their_bytes() {
    let world = World::new();
    let (context, options) = (&world.context, RegisterOptions::new());
    let bytes = pattern(3_000_001, 1);
    let vector = Registered::with_options(context, bytes.clone(), &options).unwrap();
    assert!(vector.close().unwrap() == bytes);
    let boxed: Box<[u32]> = (0..100_000).collect();
    let boxed = Registered::with_options(context, boxed, &options).unwrap();
    assert_eq!(boxed.as_slice().unwrap()[99_999], 99_999);
    let empty = Registered::with_options(context, Vec::<u8>::new(), &options).unwrap();
    assert_eq!(empty.close().unwrap(), []);
    // Memory that nobody may write is made ready to be read.
    let shared = Arc::new(bytes);
    match Registered::with_options(context, Arc::clone(&shared), &options) {
        Ok(registered) => assert!(registered.flags().contains(RegisterFlags::READ_ONLY)),
        Err(refused) => assert!(matches!(refused.error, Error::Unsupported { .. }), "{}", refused.error),
    }
}

#[test]
fn files_of_all_kinds() {
    let world = World::new();
    let bytes = pattern(5 * 4096 + 17, 2);
    let copy = |name: &str, mapping: FileMapping| {
        let result = Registered::with_options(&world.context, mapping, &RegisterOptions::new());
        record!(name, &result);
        let registered = result?;
        let device = DeviceBuffer::<u8>::zeroed(&world.stream, bytes.len())?;
        scope(&world.context, |scope| {
            scope.upload_bytes(&world.stream, &registered, 0..bytes.len(), &device.whole())
        })?;
        assert!(device.to_vec(&world.stream)? == bytes, "{name}");
        Ok::<(), Error>(())
    };
    let file = TempFile::on_tmpfs(&bytes);
    copy("private", FileMapping::private(&file.open()).unwrap()).unwrap();
    copy("shared", FileMapping::shared(&file.open_for_writing()).unwrap()).unwrap();
    let read_only = copy("read-only", FileMapping::read_only(&file.open()).unwrap());
    assert!(matches!(read_only, Ok(()) | Err(Error::Unsupported { .. })), "{read_only:?}");
    let disk = TempFile::on_disk(&bytes);
    copy("private on disk", FileMapping::private(&disk.open()).unwrap()).unwrap();
    for (name, mapping) in [
        ("shared on disk", FileMapping::shared(&disk.open_for_writing()).unwrap()),
        ("read-only on disk", FileMapping::read_only(&disk.open()).unwrap()),
    ] {
        let result = copy(name, mapping);
        let refused = |error: &Error| matches!(error, Error::Unsupported { .. }) || error.code().is_some();
        assert!(result.as_ref().err().is_none_or(refused), "{name}: {result:?}");
    }
    assert!(std::fs::read(file.path()).unwrap() == bytes);
    assert!(std::fs::read(disk.path()).unwrap() == bytes);
}

#[test]
fn a_file_that_shrank_is_an_error_that_says_so() {
    let world = World::new();
    let file = TempFile::on_tmpfs(&pattern(3 * 4096, 3));
    let writable = file.open_for_writing();
    for (name, mapping) in [
        ("shared", FileMapping::shared(&writable).unwrap()),
        ("private", FileMapping::private(&writable).unwrap()),
    ] {
        writable.set_len(4096).unwrap();
        let address = mapping.as_ptr();
        let refused = Registered::with_options(&world.context, mapping, &RegisterOptions::new()).unwrap_err();
        // A kernel that populates nothing leaves it to the driver, which has the same code for it.
        record!(name, &refused.error);
        assert!(matches!(refused.error, Error::NoPage { .. } | Error::Driver(_)), "{}", refused.error);
        assert_eq!(refused.owner.as_ptr(), address);
        writable.set_len(3 * 4096).unwrap();
    }
}

/// Pages of a mapping from which some in the middle were taken.
struct WithHole {
    mapping: *mut u8,
}

const PAGES: usize = 64;
const PAGE: usize = 4096;
const HOLE: std::ops::Range<usize> = 40..43;

impl WithHole {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // Far from where the system looks for room, and each at a place of its own: another thread's mapping would fill the hole.
        static NEXT: AtomicUsize = AtomicUsize::new(0x7e90_0000_0000);
        let place = std::ptr::without_provenance_mut(NEXT.fetch_add(1 << 30, Ordering::Relaxed));
        // SAFETY: a new mapping; the place is but a wish.
        let mapping = unsafe { libc::mmap(place, PAGES * PAGE, access, flags, -1, 0) };
        assert_ne!(mapping, libc::MAP_FAILED);
        let mapping = mapping.cast::<u8>();
        let hole = mapping.wrapping_add(HOLE.start * PAGE).cast();
        // SAFETY: pages of the mapping above, that nobody uses.
        assert_eq!(unsafe { libc::munmap(hole, HOLE.len() * PAGE) }, 0);
        Self { mapping }
    }
}

// SAFETY: only an address.
unsafe impl Send for WithHole {}

// SAFETY: not kept, for the pages of the hole: these tests show that they are found. Nobody uses the bytes.
unsafe impl HostMemory for WithHole {
    fn as_ptr(&self) -> *const u8 {
        self.mapping
    }

    fn byte_len(&self) -> usize {
        PAGES * PAGE
    }

    fn is_writable(&self) -> bool {
        true
    }
}

impl Drop for WithHole {
    fn drop(&mut self) {
        for pages in [0..HOLE.start, HOLE.end..PAGES] {
            // SAFETY: pages of the mapping, without the hole.
            unsafe { libc::munmap(self.mapping.wrapping_add(pages.start * PAGE).cast(), pages.len() * PAGE) };
        }
    }
}

#[test]
fn a_hole_is_named() {
    let world = World::new();
    let with_options = |memory| {
        Registered::with_options(&world.context, memory, &RegisterOptions::new()).map(drop).unwrap_err()
    };
    let new =
        |memory| Registered::new(&world.context, memory, RegisterFlags::default()).map(drop).unwrap_err();
    for (name, refused) in [("with options", with_options(WithHole::new())), ("new", new(WithHole::new()))] {
        record!(name, &refused.error);
        let start = refused.owner.as_ptr().addr();
        let expected = start + HOLE.start * PAGE..start + HOLE.end * PAGE;
        assert!(
            matches!(&refused.error, Error::NotMapped { hole, .. } if *hole == expected),
            "{}",
            refused.error
        );
        assert!(refused.error.to_string().contains(&format!("{:#x}", expected.start)));
    }
}

#[test]
fn progress_grows_to_the_whole_and_is_told_in_this_thread() {
    let world = World::new();
    let (seen, here) = (RefCell::new(Vec::new()), std::thread::current().id());
    let tell = |progress| {
        assert_eq!(std::thread::current().id(), here);
        seen.borrow_mut().push(progress);
    };
    let options = RegisterOptions::new().threads(3).progress(&tell);
    let registered = Registered::with_options(&world.context, mapping(), &options).unwrap();
    drop(registered);
    let seen = seen.into_inner();
    assert_eq!(seen.last(), Some(&Progress::Registering));
    let bytes: Vec<_> = seen[..seen.len() - 1]
        .iter()
        .map(|progress| match *progress {
            Progress::Populating { bytes, total: LEN } => bytes,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(bytes.is_sorted() && bytes.last() == Some(&LEN), "{bytes:?}");
}

#[test]
fn a_cancelled_call_gives_the_owner_back_and_can_be_repeated() {
    let world = World::new();
    let token = CancelToken::new();
    let other = token.clone();
    let reports = Cell::new(0);
    let tell = |progress| {
        reports.set(reports.get() + 1);
        assert_ne!(progress, Progress::Registering);
        other.cancel();
    };
    let options = RegisterOptions::new().threads(1).progress(&tell).cancel(&token);
    let refused = Registered::with_options(&world.context, mapping(), &options).unwrap_err();
    assert!(matches!(refused.error, Error::Cancelled), "{}", refused.error);
    assert_eq!(reports.get(), 1);
    assert_eq!(kind(&world, &refused.owner), MemoryKind::Unknown);
    let report = refused.owner.residency().unwrap();
    assert!(report.resident > 0 && report.resident < report.mapped, "{report:?}");
    let registered =
        Registered::with_options(&world.context, refused.owner, &RegisterOptions::new()).unwrap();
    assert_eq!(kind(&world, &registered), MemoryKind::Host);
}

#[test]
fn a_panic_in_the_callback_goes_on_and_leaves_nothing_registered() {
    let world = World::new();
    let memory = vec![4u8; LEN];
    let pages = Piece { start: memory.as_ptr(), len: memory.len() };
    for at_the_end in [false, true] {
        let tell = |progress| {
            assert!((progress == Progress::Registering) != at_the_end, "of the callback");
        };
        let options = RegisterOptions::new().threads(2).progress(&tell);
        let run = || Registered::with_options(&world.context, pages, &options).map(drop);
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the callback"));
        assert_eq!(kind(&world, &pages), MemoryKind::Unknown);
    }
    drop(Registered::with_options(&world.context, pages, &RegisterOptions::new()).unwrap());
    assert!(memory == vec![4; LEN]);
}

/// Memory of somebody who keeps it himself.
#[derive(Clone, Copy)]
struct Piece {
    start: *const u8,
    len: usize,
}

// SAFETY: only an address.
unsafe impl Send for Piece {}

// SAFETY: the test keeps the memory until it is unregistered, and does not touch it before that.
unsafe impl HostMemory for Piece {
    fn as_ptr(&self) -> *const u8 {
        self.start
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }
}

#[test]
fn what_is_registered_already_is_refused_or_shared_before_a_page_is_brought_in() {
    let world = World::new();
    let (context, never) = (&world.context, |progress: Progress| panic!("{progress:?}"));
    let options = RegisterOptions::new().progress(&never);
    let registered = Registered::new(context, pattern(100_000, 4), RegisterFlags::default()).unwrap();
    let range = registered.as_ptr().addr()..registered.as_ptr().addr() + 100_000;
    let flags = RegisterFlags::MAPPED;
    let refused = Registered::with_options(context, registered, &options.flags(flags)).unwrap_err();
    record!("other flags", &refused.error);
    let ours = RegisteredBy::Ours { range };
    assert!(matches!(refused.error, Error::AlreadyRegistered { by, .. } if by == ours));
    let shared = Registered::with_options(context, refused.owner, &options).unwrap();
    drop(shared.close().unwrap().close().unwrap());
}

#[test]
fn captures_of_others_stay_whole() {
    let world = World::new();
    let stream = world.new_stream();
    let capture = Capture::begin(&stream, GLOBAL);
    let options = RegisterOptions::new().threads(4);
    let registered = Registered::with_options(&world.context, mapping(), &options).unwrap();
    drop(registered);
    let graph = capture.end().unwrap_or_else(|code| panic!("the capture was lost: {}", code.0));
    assert_eq!(graph.len(), 0);
}
