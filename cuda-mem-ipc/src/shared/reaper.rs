//! One thread looks after all peers: it takes what they give back, and what they held when they die. A second thread waits for its lock. The thread
//! that reads of an urgent job, the import of a segment, leaves the peers to the other one and does the job: to wake a thread for it would take longer.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::background::{DROPS, drop_in_background};
use crate::error::{Error, Result};
use crate::primitive::lock;
use crate::transport::{Connection, Poller};

/// How long a peer that has closed its end may live on before what it holds is taken. A peer that follows the protocol holds nothing
/// then; one that is killed or calls `exec` closes a moment before the rest of it ends.
const GRACE: Duration = Duration::from_millis(500);

/// How often is tried again what could not be done at once.
const TICK: Duration = Duration::from_millis(10);

/// What is to begin at once, and may take long.
pub(super) type Urgent = Box<dyn FnOnce() + Send>;

pub(super) trait Watched: Send + Sync {
    fn connection(&self) -> &Connection;

    /// Whether there is room for what a message may bring.
    fn may_read(&self) -> bool {
        true
    }

    /// Takes what came, and does what was left to do. An error means that nothing will come any more, but for one of the system, which
    /// means that it is to be tried again. Must give no stream work: the driver may hold that up until a stream has gone on that waits for a
    /// peer. What calls the driver is put into `urgent`.
    fn service(self: Arc<Self>, urgent: &mut Vec<Urgent>) -> Result<()>;

    /// Whether all that came by memory was taken. Only this thread reads it.
    fn may_sleep(&self) -> bool {
        true
    }

    /// Whether work is left that no message will announce.
    fn is_restless(&self) -> bool;

    /// Whether its owner has let it go and nothing is left to do. What its peer writes from here on is not waited for.
    fn ends_well(&self) -> bool;

    /// The peer has ended. Must not block.
    fn end(self: Arc<Self>);
}

struct Watch {
    link: Arc<dyn Watched>,
    /// When its peer closed its end, and may live on.
    closed: Option<Instant>,
    /// The system could not give what there is. It is asked again after a while: what is there would have the thread do so all the time.
    is_refused: bool,
}

/// Shared by both threads. The one that has the lock looks after the peers.
struct Shift {
    /// An eventfd that wakes the thread that looks.
    wake_up: OwnedFd,
    watches: Mutex<Vec<Watch>>,
    /// How many threads wait for the lock.
    waiting: AtomicUsize,
}

/// What the threads are told. They are there while there is something to look after.
struct Inbox {
    new: Vec<Arc<dyn Watched>>,
    shift: Option<Arc<Shift>>,
}

static INBOX: Mutex<Inbox> = Mutex::new(Inbox { new: Vec::new(), shift: None });

/// Looks after a link until it is done or its peer is gone.
pub(super) fn watch(link: Arc<dyn Watched>) -> Result<()> {
    let mut inbox = lock(&INBOX);
    if let Some(shift) = &inbox.shift {
        shift.wake();
        inbox.new.push(link);
        return Ok(());
    }
    let wake_up =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
    let shift = Arc::new(Shift { wake_up, watches: Mutex::default(), waiting: AtomicUsize::new(0) });
    for _ in 0..2 {
        let shift = Arc::clone(&shift);
        let serve = move || std::iter::from_fn(|| shift.look_after()).for_each(|job| job());
        let thread = thread::Builder::new().name("cuda-mem-reaper".into()).spawn(serve);
        thread.map_err(|error| Error::System { call: "clone", source: Arc::new(error) })?;
    }
    inbox.shift = Some(shift);
    inbox.new.push(link);
    Ok(())
}

pub(super) fn wake() {
    if let Some(shift) = &lock(&INBOX).shift {
        shift.wake();
    }
}

impl Shift {
    fn wake(&self) {
        // It fails only when it was woken 2^64 times.
        let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
    }

    /// Looks until there is a job for this thread, and the other one goes on. None when there is no peer to look after.
    fn look_after(self: &Arc<Self>) -> Option<Urgent> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut watches = lock(&self.watches);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        loop {
            {
                let mut inbox = lock(&INBOX);
                // Otherwise the other thread has found no peer, and new threads look after peers that came since.
                inbox.shift.as_ref().filter(|shift| Arc::ptr_eq(shift, self))?;
                let watch = |link| Watch { link, closed: None, is_refused: false };
                watches.extend(inbox.new.drain(..).map(watch));
                if watches.is_empty() {
                    inbox.shift = None;
                    return None;
                }
            }
            let exited = wait(&self.wake_up, &watches);
            let (mut count, mut urgent) = ([0; 8], Vec::new());
            // Empty if it was not woken.
            let _ = rustix::io::read(&self.wake_up, &mut count);
            // From the last on, so that what takes a removed one's place has had its turn.
            for index in (0..watches.len()).rev() {
                let exited = exited.contains(&Some(index));
                if watches.get_mut(index).is_some_and(|watch| !watch.turn(exited, &mut urgent)) {
                    // The last share in a connection has streams to wait for.
                    drop_in_background(watches.swap_remove(index));
                }
            }
            let mut urgent = urgent.into_iter();
            let own = if self.waiting.load(Ordering::SeqCst) > 0 { urgent.next() } else { None };
            urgent.for_each(|job| DROPS.run(job));
            if own.is_some() {
                return own;
            }
        }
    }
}

/// The places of peers that have exited, and None for whatever else has come.
fn wait(wake_up: &OwnedFd, watches: &[Watch]) -> Vec<Option<usize>> {
    let mut poller = Poller::new();
    poller.readable(None, wake_up);
    let mut limit = if DROPS.is_behind() { TICK } else { Duration::from_secs(3600) };
    for (index, watch) in watches.iter().enumerate() {
        let connection = watch.link.connection();
        poller.readable(Some(index), connection.peer());
        if watch.closed.is_some() || watch.is_refused || watch.link.is_restless() {
            limit = limit.min(TICK);
        }
        if watch.closed.is_none() {
            if !watch.link.may_sleep() {
                limit = Duration::ZERO;
            }
            if watch.link.may_read() && !watch.is_refused {
                poller.readable(None, connection);
            }
        }
    }
    poller.wait(limit).unwrap_or_else(|_| {
        // Too many descriptors for one call, which may pass. Whatever came is found by looking.
        thread::sleep(TICK);
        let has_exited = |watch: &Watch| matches!(watch.link.connection().peer().is_alive(), Ok(false));
        let exited = watches.iter().enumerate().filter(|(_, watch)| has_exited(watch));
        exited.map(|(index, _)| Some(index)).collect()
    })
}

impl Watch {
    /// Whether it is to be watched any longer.
    fn turn(&mut self, exited: bool, urgent: &mut Vec<Urgent>) -> bool {
        if self.closed.is_none() {
            // What a peer had sent before it ended counts.
            let served = Arc::clone(&self.link).service(urgent);
            self.is_refused = served.as_ref().is_err_and(Error::is_the_system_s);
            if served.is_err() && !self.is_refused {
                self.closed = Some(Instant::now());
            }
        }
        if exited || self.closed.is_some_and(|at| at.elapsed() >= GRACE) {
            Arc::clone(&self.link).end();
            return false;
        }
        !self.link.ends_well()
    }
}
