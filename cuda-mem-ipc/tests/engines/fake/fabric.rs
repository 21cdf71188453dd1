//! What both stand-ins are made of: calls that all ranks make together, and memory that each rank maps of all.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "nccl")]
use cuda_mem_core::sys::CUstreamCaptureMode;
use cuda_mem_core::sys::{CUipcMemHandle_v1 as CUipcMemHandle, CUresult, CUstream, Table};

use crate::common::driver;

/// Who waits so long alone hangs.
const HANGS: Duration = Duration::from_secs(60);

/// What the ranks know each other by.
pub(super) fn new_id() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let words = [u64::from(std::process::id()), NEXT.fetch_add(1, Ordering::Relaxed)];
    let mut id = [0; 16];
    id.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())).for_each(|(to, from)| *to = from);
    id
}

/// The ranks, and the memory that they have of each other.
pub(super) struct Fabric {
    directory: PathBuf,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    calls: u64,
    /// By this rank's address: bytes, and where each rank has it.
    pub(super) memory: BTreeMap<u64, (usize, Vec<u64>)>,
}

impl Fabric {
    pub(super) fn join(id: &[u8], rank: usize, ranks: usize) -> Self {
        let name = id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let directory = std::env::temp_dir().join(format!("cuda-mem-fake-{name}"));
        fs::create_dir_all(&directory).unwrap();
        let mut fabric = Self { directory, rank, ranks, calls: 0, memory: BTreeMap::new() };
        fabric.meet("join", &[]);
        fabric
    }

    /// One whose ranks never meet.
    #[cfg(feature = "nvshmem")]
    pub(super) fn pretended(rank: usize, ranks: usize) -> Self {
        Self { directory: PathBuf::new(), rank, ranks, calls: 0, memory: BTreeMap::new() }
    }

    /// Waits until all ranks are at the same call; what each has brought.
    pub(super) fn meet(&mut self, call: &str, brought: &[u8]) -> Vec<Vec<u8>> {
        let (number, start) = (self.calls, Instant::now());
        self.calls += 1;
        let path = |rank| self.directory.join(format!("{number}.{rank}"));
        let mut content = format!("{call}\n").into_bytes();
        content.extend(brought);
        let written = self.directory.join(format!("{number}.{}.new", self.rank));
        fs::write(&written, content).unwrap();
        fs::rename(written, path(self.rank)).unwrap();
        let of = |rank| loop {
            if let Ok(content) = fs::read(path(rank)) {
                let end = content.iter().position(|byte| *byte == b'\n').unwrap();
                // The real ones do not come back from that.
                assert_eq!(call.as_bytes(), &content[..end], "rank {rank} is at another collective call");
                return content[end + 1..].to_vec();
            }
            assert!(start.elapsed() < HANGS, "rank {rank} never came to {call}");
            std::thread::sleep(Duration::from_millis(1));
        };
        (0..self.ranks).map(of).collect()
    }

    /// There is no last meeting.
    pub(super) fn forget(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }

    /// The last meeting.
    pub(super) fn leave(mut self) {
        assert!(self.memory.is_empty(), "memory that was not given back");
        self.meet("leave", &[]);
        fs::write(self.directory.join(format!("left.{}", self.rank)), []).unwrap();
        let has_left = |rank| self.directory.join(format!("left.{rank}")).exists();
        if self.rank == 0 {
            // Nobody reads there any more when all have said so.
            while !(0..self.ranks).all(has_left) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    /// Maps memory of this rank, and as much of every other.
    pub(super) fn share(&mut self, own: u64, bytes: usize) -> Vec<u64> {
        let table = table();
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        let get = table.cuIpcGetMemHandle().unwrap();
        // SAFETY: a handle to write, memory of `allocate`.
        good(unsafe { get(&mut handle, own) });
        let brought = handle.reserved.map(|byte| byte.to_ne_bytes()[0]);
        let met = self.meet(&format!("share {bytes}"), &brought);
        let open = |(rank, content): (usize, &Vec<u8>)| {
            if rank == self.rank {
                return own;
            }
            let reserved: [u8; 64] = content.as_slice().try_into().unwrap();
            let reserved = reserved.map(|byte| c_char::from_ne_bytes([byte]));
            let (mut there, handle) = (0, CUipcMemHandle { reserved });
            let open = table.cuIpcOpenMemHandle().unwrap();
            // SAFETY: an address to write; a handle of the other rank.
            good(unsafe { open(&mut there, handle, 1) });
            there
        };
        let addresses = met.iter().enumerate().map(open).collect::<Vec<_>>();
        self.memory.insert(own, (bytes, addresses.clone()));
        addresses
    }

    /// Unmaps what `share` has mapped.
    pub(super) fn unshare(&mut self, own: u64) {
        let (bytes, addresses) = self.memory.remove(&own).expect("memory that all have");
        self.meet(&format!("unshare {bytes}"), &[]);
        for there in addresses.into_iter().filter(|there| *there != own) {
            let close = table().cuIpcCloseMemHandle().unwrap();
            // SAFETY: an address of `share`, which is used by nobody any more.
            good(unsafe { close(there) });
        }
        // Before anybody frees what others have mapped.
        self.meet("unshared", &[]);
    }

    /// Where a rank has what is at an address here.
    pub(super) fn there(&self, address: u64, rank: usize) -> Option<u64> {
        let (own, (bytes, addresses)) = self.memory.range(..=address).next_back()?;
        (address - own < *bytes as u64).then(|| addresses[rank] + (address - own))
    }
}

pub(super) fn table() -> &'static Table {
    driver().table()
}

pub(super) fn allocate(bytes: usize) -> u64 {
    let mut made = 0;
    let allocate = table().cuMemAlloc().unwrap();
    // SAFETY: an address to write; the backend has made a context current.
    good(unsafe { allocate(&mut made, bytes) });
    made
}

pub(super) fn free(address: u64) {
    let free = table().cuMemFree().unwrap();
    // SAFETY: memory of `allocate`, which nobody has mapped or uses.
    good(unsafe { free(address) });
}

/// Has a stream write a word.
pub(super) fn write(stream: CUstream, word: u64, value: u64) {
    let write = table().cuStreamWriteValue64().unwrap();
    // SAFETY: a word of memory that all ranks keep, a live stream.
    good(unsafe { write(stream, word, value, 0) });
}

/// Has a stream wait for a word that is not below a value.
pub(super) fn wait(stream: CUstream, word: u64, value: u64) {
    let wait = table().cuStreamWaitValue64().unwrap();
    // SAFETY: as in `write`.
    good(unsafe { wait(stream, word, value, 0) });
}

/// Makes words the largest of all that waits compare with, beside what streams do.
#[cfg(feature = "nccl")]
pub(super) fn fill(address: u64, bytes: usize) {
    let mut stream = ptr::null_mut();
    let (create, fill) = (table().cuStreamCreate().unwrap(), table().cuMemsetD8Async().unwrap());
    let (synchronize, destroy) = (table().cuStreamSynchronize().unwrap(), table().cuStreamDestroy().unwrap());
    // SAFETY: a stream to write, not blocking, in the context that the backend has made current.
    good(unsafe { create(&mut stream, 1) });
    // SAFETY: so many bytes of memory of `allocate`; a live stream, which nobody has beside this.
    good(unsafe { fill(address, 0x7f, bytes, stream) });
    // SAFETY: as above.
    good(unsafe { synchronize(stream) });
    // SAFETY: as above.
    good(unsafe { destroy(stream) });
}

/// Begins a capture, with which a wait for the stream fails.
#[cfg(feature = "nccl")]
pub(super) fn capture(stream: CUstream) {
    let begin = table().cuStreamBeginCapture().unwrap();
    // SAFETY: a live stream.
    good(unsafe { begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) });
}

fn good(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

pub(super) fn pointer<T>(address: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}
