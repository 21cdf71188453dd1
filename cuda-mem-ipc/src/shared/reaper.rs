//! One thread looks after all peers: it takes what they give back, and what they held when they die. A second thread waits to relieve it. Whoever
//! hears of an urgent job, the import of a segment, hands the peers over and does the job at once: to wake another thread would take longer.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::background::{DROPS, drop_in_background};
use crate::error::{Error, Result};
use crate::primitive::lock;
use crate::transport::{Connection, Poller};

/// How long a peer that has closed its end may live on before what it holds is taken. Who follows the protocol holds nothing
/// then; who is killed or calls `exec` closes a moment before the rest of it ends.
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

    /// Whether nothing came by memory that was not taken. Nobody else reads it.
    fn may_sleep(&self) -> bool {
        true
    }

    /// The thread is awake, whether it slept or not.
    fn awake(&self) {}

    /// Whether there is something left to do that nobody will tell of.
    fn is_restless(&self) -> bool;

    /// Whether its owner has let it go and nothing is left to do.
    fn is_done(&self) -> bool;

    /// The peer is gone. Must not wait for anybody.
    fn end(self: Arc<Self>);

    /// It is done, and its peer's end will not be heard of: what that one writes from here on must keep nobody waiting.
    fn leave(&self) {}
}

struct Watch {
    link: Arc<dyn Watched>,
    /// When its peer closed its end, and may live on.
    closed: Option<Instant>,
    /// The system could not give what there is. It is asked again after a while: what is there would have the thread do so all the time.
    is_refused: bool,
}

/// Who has this looks, and gives it to the other thread when that one waits for it.
struct Shift {
    watches: Vec<Watch>,
    relief: SyncSender<Shift>,
}

/// What the thread is told. It is there while it has something to look after.
struct Inbox {
    new: Vec<Arc<dyn Watched>>,
    bell: Option<Arc<OwnedFd>>,
}

static INBOX: Mutex<Inbox> = Mutex::new(Inbox { new: Vec::new(), bell: None });

/// Looks after a link until it is done or its peer is gone.
pub(super) fn watch(link: Arc<dyn Watched>) -> Result<()> {
    let mut inbox = lock(&INBOX);
    if let Some(bell) = &inbox.bell {
        ring(bell);
        inbox.new.push(link);
        return Ok(());
    }
    let bell =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
    let bell = Arc::new(bell);
    let (relief, shifts) = sync_channel(0);
    let shifts = Arc::new(Mutex::new(shifts));
    for first in [Some(Shift { watches: Vec::new(), relief }), None] {
        let (bell, shifts) = (Arc::clone(&bell), Arc::clone(&shifts));
        let next = move || lock(&shifts).recv().ok();
        let shifts = first.into_iter().chain(std::iter::from_fn(next));
        let serve = move || shifts.for_each(|shift| look_after(&bell, shift));
        let thread = thread::Builder::new().name("cuda-mem-reaper".into()).spawn(serve);
        thread.map_err(|error| Error::System { call: "clone", source: Arc::new(error) })?;
    }
    inbox.bell = Some(bell);
    inbox.new.push(link);
    Ok(())
}

pub(super) fn wake() {
    if let Some(bell) = &lock(&INBOX).bell {
        ring(bell);
    }
}

fn ring(bell: &OwnedFd) {
    // It fails only when it has been rung 2^64 times.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Bell,
    Exit(usize),
    Connection(usize),
}

/// Looks until there is nobody to look after, or the other thread does.
fn look_after(bell: &OwnedFd, mut shift: Shift) {
    loop {
        let watches = &mut shift.watches;
        {
            let mut inbox = lock(&INBOX);
            watches.extend(inbox.new.drain(..).map(Watch::new));
            if watches.is_empty() {
                inbox.bell = None;
                return;
            }
        }
        let ready = wait(bell, watches);
        watches.iter().for_each(|watch| watch.link.awake());
        let (mut count, mut urgent) = ([0; 8], Vec::new());
        // Empty if it was not rung.
        let _ = rustix::io::read(bell, &mut count);
        // From the last on, so that what takes a removed one's place has had its turn.
        for index in (0..watches.len()).rev() {
            let exited = ready.contains(&Ready::Exit(index));
            let came = ready.contains(&Ready::Connection(index));
            if watches.get_mut(index).is_some_and(|watch| !watch.turn(came, exited, &mut urgent)) {
                // The last share in a connection has streams to wait for.
                drop_in_background(watches.swap_remove(index));
            }
        }
        let mut urgent = urgent.into_iter();
        let Some(first) = urgent.next() else { continue };
        urgent.for_each(|job| DROPS.run(job));
        let relief = shift.relief.clone();
        match relief.try_send(shift) {
            Ok(()) => return first(),
            Err(TrySendError::Full(still) | TrySendError::Disconnected(still)) => shift = still,
        }
        DROPS.run(first);
    }
}

fn wait(bell: &OwnedFd, watches: &[Watch]) -> Vec<Ready> {
    let mut poller = Poller::new();
    poller.readable(Ready::Bell, bell);
    let mut limit = if DROPS.is_behind() { TICK } else { Duration::from_secs(3600) };
    for (index, watch) in watches.iter().enumerate() {
        let connection = watch.link.connection();
        poller.readable(Ready::Exit(index), connection.peer());
        if watch.closed.is_some() || watch.is_refused || watch.link.is_restless() {
            limit = limit.min(TICK);
        }
        if watch.closed.is_none() {
            if !watch.link.may_sleep() {
                limit = Duration::ZERO;
            }
            if watch.link.may_read() && !watch.is_refused {
                poller.readable(Ready::Connection(index), connection);
            }
        }
    }
    poller.wait(limit).unwrap_or_else(|_| {
        // Too many descriptors for one call, which may pass. Whatever came is found by looking.
        thread::sleep(TICK);
        let has_exited = |watch: &Watch| matches!(watch.link.connection().peer().is_alive(), Ok(false));
        let exited = watches.iter().enumerate().filter(|(_, watch)| has_exited(watch));
        exited.map(|(index, _)| Ready::Exit(index)).collect()
    })
}

impl Watch {
    fn new(link: Arc<dyn Watched>) -> Self {
        Self { link, closed: None, is_refused: false }
    }

    /// Whether it is to be watched any longer.
    fn turn(&mut self, came: bool, exited: bool, urgent: &mut Vec<Urgent>) -> bool {
        if self.closed.is_none() {
            let was_refused = std::mem::replace(&mut self.is_refused, false);
            // What a peer had sent before it ended counts.
            let ended = match Arc::clone(&self.link).service(urgent) {
                Ok(()) => false,
                Err(error) if error.is_the_system_s() => {
                    self.is_refused = true;
                    // Nothing but its end was listened for: what it had sent cannot be had.
                    came && was_refused
                }
                Err(_) => true,
            };
            if ended {
                self.closed = Some(Instant::now());
            }
        }
        if exited || self.closed.is_some_and(|at| at.elapsed() >= GRACE) {
            Arc::clone(&self.link).end();
            return false;
        }
        let is_done = self.link.is_done();
        if is_done {
            self.link.leave();
        }
        !is_done
    }
}
