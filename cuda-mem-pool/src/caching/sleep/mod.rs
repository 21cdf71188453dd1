//! Sleep and wake: memory of a tag goes back to the device, and comes back at the same addresses.
//!
//! A tag is a name for private pools whose segments are mapped memory ([`mapped`]). [`cycle`] puts tags to sleep and wakes them,
//! [`backup`] has their bytes meanwhile, [`owned`] is the form without `unsafe`.

mod backup;
mod cycle;
mod mapped;
mod owned;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::vmm::CreateOptions;
use cuda_mem_core::{Context, forked};

use self::backup::BackupMemory;
use self::mapped::Segment;
pub use self::owned::Asleep;
use super::CachingAllocator;
use super::callbacks::{CallbackId, refuse_watchers};
use super::private::{Private, refuse_tag_s};
use crate::error::{Error, Result, SleepError, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicU32, Mutex, lock, lock_over_calls, unique};
use crate::resource::RawResource;
use crate::segments::Filter;

/// Where the bytes of a tag are while it sleeps. [`Tag`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backup {
    /// In pinned host memory, of exactly the size of what is live.
    Pinned,
    /// Nowhere: the program writes them anew after waking.
    Discard,
}

/// What woken memory has. [`Tag`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restore {
    /// What it had, as far as there is a backup; anything, where there is none.
    Backup,
    /// Anything: it will be overwritten.
    Nothing,
    /// Each byte is this one.
    Filled(u8),
}

/// A range that stayed awake though its tag sleeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The addresses that [`Tag::keep`] was asked for.
    pub range: Range<CUdeviceptr>,
    /// The bytes that stayed for it: whole segments. One in which several such ranges lie counts for each of them.
    pub bytes: usize,
    /// The reason that [`Tag::keep`] was given.
    pub reason: String,
}

/// What came of calling a registrant for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The registrant.
    pub id: CallbackId,
    /// How long it took.
    pub took: Duration,
    /// What it failed with, a panic too.
    pub error: Option<String>,
}

/// What came of putting tags to sleep. [`Tag`] has an example.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Slept {
    /// The bytes that were given back to the driver.
    pub freed: usize,
    /// The bytes that the backup took.
    pub saved: usize,
    /// Ranges that stayed awake.
    pub kept: Vec<Kept>,
    /// Of `freed`, the bytes that the driver does not show as free: another holder (an export, an import) has them, or another process took them.
    pub missing: usize,
    /// Segments that the driver refused to unmap: they stay awake and can sleep later. Those whose memory it refused to take sleep.
    pub refused: Vec<(Range<CUdeviceptr>, Error)>,
    /// What registrants did.
    pub notices: Vec<Notice>,
}

/// A change behind addresses of a tag. [`Tag`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackingEvent<'e> {
    /// The tag's name.
    pub tag: &'e str,
    /// Whether the memory is about to go; else it has just come.
    pub is_leaving: bool,
    /// The addresses, in their order.
    pub ranges: &'e [Range<CUdeviceptr>],
}

/// How much of a tag is awake. [`Tag`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagState {
    /// Whether it was put to sleep: allocations in it are refused.
    pub is_asleep: bool,
    /// The bytes that have memory.
    pub awake_bytes: usize,
    /// The bytes that have none.
    pub asleep_bytes: usize,
    /// The bytes of pinned host memory that it has for backups.
    pub backup_bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tags {
    by_name: Mutex<BTreeMap<String, Arc<TagShared>>>,
    peers: Peers,
}

/// The primary contexts of the devices that may reach the memory of all tags, and of `cuMemAlloc`, which they keep so; and whether new memory
/// is mapped for them too. Where mapping failed it is not, and the device may reach what was mapped before: it is still waited for.
type Peers = Arc<Mutex<Vec<(Context, bool)>>>;

/// A tag: the source of its pools' segments, which is how they are known.
#[derive(Debug)]
struct TagShared {
    name: String,
    /// Its own pool, which serves its scopes.
    id: MempoolId,
    context: Context,
    options: CreateOptions,
    peers: Peers,
    /// By address. A segment is shared with whoever works at it, so that no call of the driver is made under this lock.
    segments: Mutex<BTreeMap<CUdeviceptr, Arc<Segment>>>,
    phase: AtomicU32,
    keeps: Mutex<BTreeMap<u64, (Range<CUdeviceptr>, String)>>,
    /// One for each time that a part was put to sleep; awake, the one without bytes for the next time.
    backups: Mutex<Vec<BackupMemory>>,
    /// The bytes without memory in small segments and in large ones, as they are counted.
    lacking: Mutex<[usize; 2]>,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Somebody puts it to sleep or wakes it.
const BUSY: u32 = 2;

impl Tags {
    fn all(&self) -> Vec<Arc<TagShared>> {
        lock(&self.by_name).values().cloned().collect()
    }

    /// All pools whose memory is a tag's, with its name.
    pub(super) fn pools(&self, private: &Private) -> Vec<(MempoolId, String)> {
        let named =
            |tag: Arc<TagShared>| private.pools_of(&*tag).into_iter().map(move |id| (id, tag.name.clone()));
        self.all().into_iter().flat_map(named).collect()
    }

    /// Lets a peer reach the memory of all tags, and of those that come.
    pub(super) fn add_peer(&self, peer: &Context) -> cuda_mem_core::Result<()> {
        let device = peer.device();
        let set = |is_let_in| {
            let mut peers = lock(&self.peers);
            match peers.iter_mut().find(|(known, _)| known.device() == device) {
                Some((_, before)) => *before = is_let_in,
                None => peers.push((peer.clone(), is_let_in)),
            }
        };
        // Before the tags are looked at: what is made and mapped meanwhile is for it too.
        set(true);
        let outcome = self.all().iter().try_for_each(|tag| tag.let_in(device));
        if outcome.is_err() {
            set(false);
        }
        outcome
    }

    /// What an allocation is refused by that would get memory of a source which sleeps. The caller has no lock of the pools: who makes a tag
    /// takes that behind the one here.
    pub(super) fn asleep(&self, source: Option<Arc<dyn RawResource>>) -> Error {
        let source = source.map(|source| Arc::as_ptr(&source).addr());
        let tag = self.all().into_iter().find(|tag| source == Some(Arc::as_ptr(tag).addr()));
        SleepError::Asleep { tag: tag.map_or_else(String::new, |tag| tag.name.clone()) }.into()
    }
}

/// A name for memory that sleeps and wakes as one.
///
/// What a thread allocates in a scope of the tag is the tag's. It never moves. Asleep, it takes no memory of the device; its addresses stay
/// reserved, so that tensors, and graphs that were captured before, go on after waking.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::Error;
/// use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, SleepError, Tag};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let weights = allocator.tag("weights")?;
/// let scope = weights.enter()?;
/// let _block = allocator.allocate_by_address(100 << 20, &stream)?;
/// drop(scope);
/// let told = Arc::new(AtomicUsize::new(0));
/// let count = Arc::clone(&told);
/// allocator.on_backing_change(move |event| {
///     count.fetch_add(if event.is_leaving { 1 } else { 10 }, Ordering::Relaxed);
///     Ok(())
/// });
///
/// // SAFETY: nothing that uses the block is queued before it is woken.
/// let slept = unsafe { Tag::sleep(&[&weights], Backup::Pinned) }?;
/// assert_eq!((slept.freed, slept.kept.len(), slept.missing), (100 << 20, 0, 0));
/// assert_eq!(allocator.reserved_bytes(), 0);
/// let scope = weights.enter()?;
/// let refused = allocator.allocate_by_address(1000, &stream);
/// assert!(matches!(refused, Err(Error::Sleep(SleepError::Asleep { tag })) if tag == "weights"));
/// Tag::wake(&[&weights], Restore::Backup)?;
/// assert_eq!((weights.state().awake_bytes, told.load(Ordering::Relaxed)), (100 << 20, 11));
/// # drop(scope);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tag {
    allocator: CachingAllocator,
    shared: Arc<TagShared>,
}

impl Tag {
    /// The tag of that name of an allocator, which is made if there is none.
    pub(super) fn of(allocator: &CachingAllocator, name: &str) -> Result<Self> {
        refuse_forked()?;
        let cache = allocator.shared();
        let mut by_name = lock(&cache.tags.by_name);
        if let Some(shared) = by_name.get(name) {
            return Ok(Self { allocator: allocator.clone(), shared: Arc::clone(shared) });
        }
        let shared = Arc::new(TagShared {
            name: name.to_owned(),
            id: MempoolId::for_tag(),
            context: cache.context.clone(),
            options: CreateOptions::supported_by(cache.context.device())?,
            peers: Arc::clone(&cache.tags.peers),
            segments: Mutex::default(),
            phase: AtomicU32::new(AWAKE),
            keeps: Mutex::default(),
            backups: Mutex::default(),
            lacking: Mutex::default(),
        });
        cache.private.give_source(shared.id, Arc::clone(&shared) as Arc<_>)?;
        by_name.insert(name.to_owned(), Arc::clone(&shared));
        Ok(Self { allocator: allocator.clone(), shared })
    }

    pub(super) fn all(allocator: &CachingAllocator) -> Vec<Self> {
        let tags = if forked() { Vec::new() } else { allocator.shared().tags.all() };
        tags.into_iter().map(|shared| Self { allocator: allocator.clone(), shared }).collect()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The private pools whose memory is the tag's: its own, which serves its scopes, and those that were given to it.
    #[must_use]
    pub fn pools(&self) -> Vec<MempoolId> {
        if forked() { Vec::new() } else { self.allocator.shared().private.pools_of(&*self.shared) }
    }

    /// Whether memory of the tag is there.
    #[must_use]
    pub fn has(&self, address: CUdeviceptr) -> bool {
        !forked() && self.shared.segment_of(address).is_some()
    }

    /// Has what this thread allocates be the tag's until the scope is dropped. Scopes nest: of those of the allocator's tags the innermost
    /// decides. Where allocations go to a private pool that was begun later, they go there.
    pub fn enter(&self) -> Result<TagScope> {
        let filter = Filter::this_thread();
        self.allocator.begin_route(self.shared.id, filter.clone())?;
        Ok(TagScope { tag: self.clone(), filter, _not_send: PhantomData })
    }

    /// Whether memory of the tag is there that sleeps now.
    #[must_use]
    pub fn is_asleep_at(&self, address: CUdeviceptr) -> bool {
        !forked() && self.shared.segment_of(address).is_some_and(|segment| segment.is_asleep())
    }

    /// Gives a private pool to the tag, as a whole: a graph's, or one of PyTorch's `MemPool`s. It is made if there is none, for whoever uses it
    /// first; until then [`CachingAllocator::release_pool`] takes it back. When its last use has ended it is the tag's no more. A program that
    /// keeps it longer makes it before, by [`CachingAllocator::create_or_incref_pool`]. Given to its tag again, it stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`]: `HasMemory` if it has other memory or another tag, and others; [`SleepError::Asleep`]; [`SleepError::Busy`].
    pub fn add_pool(&self, id: MempoolId) -> Result<()> {
        let _busy = self.shared.begin_in(self.allocator.shared(), AWAKE)?;
        refuse_tag_s(id)?;
        self.allocator.shared().private.give_source(id, Arc::clone(&self.shared) as Arc<_>)
    }

    /// Has the memory behind a range stay awake while the result lives. It is named with its reason when the tag is put to sleep.
    ///
    /// # Errors
    ///
    /// [`SleepError::NotOfTag`] if a part of it is no memory of the tag; [`SleepError::Asleep`] if a part of it sleeps; [`SleepError::Busy`].
    pub fn keep(&self, address: CUdeviceptr, bytes: usize, reason: &str) -> Result<Keep> {
        let range = address..address.saturating_add(bytes.max(1) as u64);
        let busy = self.shared.begin(self.allocator.shared())?;
        self.shared.expect_awake(&range)?;
        let number = unique();
        lock(&self.shared.keeps).insert(number, (range, reason.to_owned()));
        drop(busy);
        Ok(Keep { tag: Arc::clone(&self.shared), number })
    }

    /// How much of it is awake.
    #[must_use]
    pub fn state(&self) -> TagState {
        if forked() {
            return TagState::default();
        }
        let segments = self.shared.segments();
        let asleep_bytes = segments.iter().map(|segment| segment.lacking()).sum();
        let all_bytes = segments.iter().map(|segment| segment.bytes()).sum::<usize>();
        TagState {
            is_asleep: !self.allocator.shared().private.serves(self.shared.id),
            awake_bytes: all_bytes.saturating_sub(asleep_bytes),
            asleep_bytes,
            backup_bytes: lock(&self.shared.backups).iter().map(BackupMemory::bytes).sum(),
        }
    }

    /// Makes the host memory for the next sleep ahead, for what is live now; how many bytes that is.
    ///
    /// # Errors
    ///
    /// [`SleepError::NoBackup`] if the system has not as much; [`SleepError::Asleep`]; [`SleepError::Busy`].
    pub fn prepare(&self) -> Result<usize> {
        refuse_watchers()?;
        let _busy = self.shared.begin_in(self.allocator.shared(), AWAKE)?;
        let shared = self.allocator.shared();
        let bytes = self.shared.plan(shared).saved_bytes();
        let before = lock(&self.shared.backups).pop();
        // Another one goes first: there may not be room for both. The program may be called, so without the lock.
        let spare = match before.filter(|before| before.bytes() == bytes) {
            None if bytes > 0 => Some(BackupMemory::new(&shared.context, bytes)?),
            kept => kept,
        };
        lock(&self.shared.backups).extend(spare);
        Ok(bytes)
    }

    /// Gives the host memory back that is kept for the next sleep; how many bytes.
    ///
    /// # Errors
    ///
    /// [`SleepError::Asleep`] for a tag that sleeps, whose backup stays; [`SleepError::Busy`].
    pub fn release_backup(&self) -> Result<usize> {
        let _busy = self.shared.begin_in(self.allocator.shared(), AWAKE)?;
        let spare = lock(&self.shared.backups).pop();
        Ok(spare.map_or(0, |spare| spare.bytes()))
    }

    /// Copies what the backup has of the bytes from an address on, up to the first that it lacks; how many. The rest of `target` may have changed.
    ///
    /// # Errors
    ///
    /// [`SleepError::Awake`]; [`SleepError::Busy`].
    pub fn read_backup(&self, address: CUdeviceptr, target: &mut [u8]) -> Result<usize> {
        let _busy = self.shared.begin_in(self.allocator.shared(), ASLEEP)?;
        let backups = lock_over_calls(&self.shared.backups);
        // Each has what was put to sleep at one time. What was saved again, since it had stayed awake, is in the last of those that have it.
        let had: Result<Vec<_>> = backups.iter().map(|backup| backup.read(address, target)).collect();
        let mut had = had?.concat();
        had.sort_unstable_by_key(|part| part.start);
        let until = had.iter().fold(address, |end, it| if it.start <= end { end.max(it.end) } else { end });
        Ok((until - address) as usize)
    }
}

/// The calling thread's allocations are a tag's. [`Tag`] has an example.
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct TagScope {
    tag: Tag,
    /// By which the tag knows it among its scopes.
    filter: Filter,
    /// It is the thread's that entered it.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for TagScope {
    fn drop(&mut self) {
        let Tag { allocator, shared } = &self.tag;
        // Refused in a forked child alone.
        if allocator.end_route(shared.id, Some(&self.filter)).is_ok() {
            // The tag has a use of its own.
            let _ = allocator.release_use(shared.id);
        }
    }
}

/// A range that stays awake. [`Tag::keep`].
#[derive(Debug)]
#[must_use = "the range may sleep when this is dropped"]
pub struct Keep {
    tag: Arc<TagShared>,
    number: u64,
}

impl Drop for Keep {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        lock(&self.tag.keeps).remove(&self.number);
    }
}
