//! One thread that looks after all peers: it takes what they give back, and what they held when they die.

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::lock;
use super::releases::{self, bury};
use crate::error::{Error, Result};
use crate::transport::{Branch, Connection, Poller};

/// How long a peer that has closed its end may live on before what it holds is taken. Who follows the protocol holds nothing
/// then; who is killed or calls `exec` closes a moment before the rest of it ends.
const GRACE: Duration = Duration::from_millis(500);

/// How often is tried again what could not be done at once.
const TICK: Duration = Duration::from_millis(10);

/// One end of a connection between pools.
pub(super) trait Watched: Send + Sync {
    fn connection(&self) -> &Connection;

    /// Whether messages are for the thread, and not for callers.
    fn reads(&self) -> bool;

    /// Takes what came, and does what was left to do. An error means that nothing will come any more, but for one of the system, which
    /// means that it is to be tried again. Must give no stream work: the driver may hold that up until a stream has gone on that waits for a
    /// peer.
    fn service(self: Arc<Self>) -> Result<()>;

    /// Where the peer says what can be done ahead. It is for the thread, too.
    fn branch(&self) -> Option<&Branch> {
        None
    }

    /// Takes what came by that. An error is as one of [`service`](Self::service). Must not wait for anybody, nor give streams work.
    fn hear(self: Arc<Self>) -> Result<()> {
        Ok(())
    }

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

    /// Whether the peer says that it has handed on what it had. Asked once, when it is gone: others may write its words still.
    fn has_heirs(&self) -> bool {
        false
    }

    /// What is closed at its other end when nobody has anything any more that the peer had.
    fn keepers(&self) -> Option<&PipeReader> {
        None
    }

    /// The peer is gone, and others may have what it had.
    fn outlive(&self) {}

    /// From then on, whenever something has happened. Must not wait for anybody.
    fn look_after_the_rest(&self) {}

    /// The peer is gone, and nobody has anything of it. Must not wait for anybody.
    fn end(self: Arc<Self>);

    /// It is done, and its peer's end will not be heard of: what that one writes from here on must keep nobody waiting.
    fn leave(&self) {}
}

struct Watch {
    link: Arc<dyn Watched>,
    state: State,
    /// The system could not give what there is, by the connection or by the branch. It is asked again after a while: what is there would
    /// have the thread do so all the time.
    is_refused: bool,
    is_branch_refused: bool,
}

/// How far a peer's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    There,
    /// It has closed its end, and may live.
    Closed(Instant),
    /// It is gone, and others have what it had.
    Outlived,
    /// Nobody has it any more. The last may have closed it a moment before the rest of it ends.
    Left(Instant),
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
    let heard = Arc::clone(&bell);
    // Before the one that needs it.
    releases::stay()?;
    let thread = thread::Builder::new().name("cuda-mem-reaper".into()).spawn(move || look_after(&heard));
    if let Err(error) = thread {
        releases::leave();
        return Err(Error::System { call: "clone", source: Arc::new(error) });
    }
    inbox.bell = Some(bell);
    inbox.new.push(link);
    Ok(())
}

/// Has the thread look at its links.
pub(super) fn wake() {
    if let Some(bell) = &lock(&INBOX).bell {
        ring(bell);
    }
}

fn ring(bell: &OwnedFd) {
    // It fails only when it has been rung 2^64 times.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Bell,
    Exit(usize),
    Connection(usize),
    Branch(usize),
    Left(usize),
}

fn look_after(bell: &OwnedFd) {
    let mut watches: Vec<Watch> = Vec::new();
    loop {
        {
            let mut inbox = lock(&INBOX);
            watches.extend(inbox.new.drain(..).map(Watch::new));
            if watches.is_empty() {
                inbox.bell = None;
                // Under the lock: the next one has them stay again.
                releases::leave();
                return;
            }
        }
        let ready = wait(bell, &watches);
        watches.iter().for_each(|watch| watch.link.awake());
        let mut count = [0; 8];
        // Empty if it was not rung.
        let _ = rustix::io::read(bell, &mut count);
        // From the last on, so that what takes a removed one's place has had its turn.
        for index in (0..watches.len()).rev() {
            let exited = ready.contains(&Ready::Exit(index));
            let came = ready.contains(&Ready::Connection(index));
            let left = ready.contains(&Ready::Left(index));
            if let Some(watch) = watches.get_mut(index)
                && (ready.contains(&Ready::Branch(index))
                    || watch.is_branch_refused && watch.state == State::There)
            {
                // Any other error has ended the connection, which is noticed there.
                let heard = Arc::clone(&watch.link).hear();
                watch.is_branch_refused = heard.is_err_and(|error| error.is_the_system_s());
            }
            if watches.get_mut(index).is_some_and(|watch| !watch.turn(came, exited, left)) {
                // The last share in a connection has streams to wait for.
                bury(watches.swap_remove(index));
            }
        }
    }
}

fn wait(bell: &OwnedFd, watches: &[Watch]) -> Vec<Ready> {
    let mut poller = Poller::new();
    poller.readable(Ready::Bell, bell);
    let mut limit = if releases::is_behind() { TICK } else { Duration::from_secs(3600) };
    for (index, watch) in watches.iter().enumerate() {
        let connection = watch.link.connection();
        if matches!(watch.state, State::There | State::Closed(_)) {
            poller.readable(Ready::Exit(index), connection.peer());
        }
        // Of what a peer leaves behind the bell and the pipe tell.
        let is_restless = watch.state != State::Outlived && watch.link.is_restless();
        if matches!(watch.state, State::Closed(_) | State::Left(_)) || is_restless {
            limit = limit.min(TICK);
        }
        if watch.state == State::There {
            if watch.is_refused || watch.is_branch_refused {
                limit = limit.min(TICK);
            }
            if !watch.link.may_sleep() {
                limit = Duration::ZERO;
            }
            if watch.link.reads() && !watch.is_refused {
                poller.readable(Ready::Connection(index), connection);
            } else {
                poller.closed(Ready::Connection(index), connection);
            }
            if !watch.is_branch_refused
                && let Some(branch) = watch.link.branch()
            {
                poller.readable(Ready::Branch(index), branch);
            }
        }
        if watch.state == State::Outlived
            && let Some(keepers) = watch.link.keepers()
        {
            poller.closed(Ready::Left(index), keepers);
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
        Self { link, state: State::There, is_refused: false, is_branch_refused: false }
    }

    /// Whether it is to be watched any longer.
    fn turn(&mut self, came: bool, exited: bool, left: bool) -> bool {
        if self.state == State::There {
            let was_refused = std::mem::replace(&mut self.is_refused, false);
            // What a peer had sent before it ended counts.
            let ended = match Arc::clone(&self.link).service() {
                Ok(()) => came && !self.link.reads(),
                Err(error) if error.is_the_system_s() => {
                    self.is_refused = true;
                    // Nothing but its end was listened for: what it had sent cannot be had.
                    came && was_refused
                }
                Err(_) => true,
            };
            if ended {
                self.state = State::Closed(Instant::now());
            }
        }
        let is_gone = match self.state {
            State::There => exited,
            State::Closed(at) => exited || at.elapsed() >= GRACE,
            State::Outlived => {
                self.link.look_after_the_rest();
                if left {
                    self.state = State::Left(Instant::now());
                }
                false
            }
            State::Left(at) => at.elapsed() >= GRACE,
        };
        let is_first = matches!(self.state, State::There | State::Closed(_));
        if is_gone && is_first && self.link.has_heirs() {
            self.link.outlive();
            self.link.look_after_the_rest();
            self.state = State::Outlived;
            return true;
        }
        if is_gone {
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

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::io::Errno;

    use super::*;
    use crate::transport::{FIRST_KIND, PeerPolicy, Pending, pair};

    struct Link {
        connection: Connection,
        branch: Option<Branch>,
        keepers: PipeReader,
        /// Whether the system does not give what there is.
        is_refused: AtomicBool,
        has_heirs: AtomicBool,
        has_ended: AtomicBool,
    }

    impl Link {
        /// With the other end, and what its peer keeps.
        fn new(has_heirs: bool) -> (Arc<Self>, Connection, PipeWriter) {
            let limit = Duration::from_secs(60);
            let (here, there) = pair().unwrap();
            let complete = move |end: Pending| end.complete(&PeerPolicy::default(), limit).unwrap();
            let other = thread::spawn(move || complete(Pending::inherited(there).unwrap()));
            let (connection, other) = (complete(here), other.join().unwrap());
            let (keepers, keepsake) = std::io::pipe().unwrap();
            let link = Self {
                connection,
                branch: None,
                keepers,
                is_refused: AtomicBool::new(false),
                has_heirs: AtomicBool::new(has_heirs),
                has_ended: AtomicBool::new(false),
            };
            (Arc::new(link), other, keepsake)
        }
    }

    impl Watched for Link {
        fn connection(&self) -> &Connection {
            &self.connection
        }

        fn reads(&self) -> bool {
            true
        }

        fn service(self: Arc<Self>) -> Result<()> {
            if self.is_refused.load(Ordering::SeqCst) {
                return Err(Error::system("recvmsg")(Errno::NOMEM));
            }
            Ok(())
        }

        fn branch(&self) -> Option<&Branch> {
            self.branch.as_ref()
        }

        fn is_restless(&self) -> bool {
            true
        }

        fn is_done(&self) -> bool {
            false
        }

        fn has_heirs(&self) -> bool {
            self.has_heirs.load(Ordering::SeqCst)
        }

        fn keepers(&self) -> Option<&PipeReader> {
            Some(&self.keepers)
        }

        fn end(self: Arc<Self>) {
            self.has_ended.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn heirs_cannot_take_back_that_there_are_any() {
        let (link, _other, keepsake) = Link::new(true);
        let mut watches = vec![Watch::new(Arc::<Link>::clone(&link))];
        assert!(watches[0].turn(false, true, false));
        assert!(watches[0].state == State::Outlived && !link.has_ended.load(Ordering::SeqCst));
        link.has_heirs.store(false, Ordering::SeqCst);
        drop(keepsake);
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        assert_eq!(wait(&bell, &watches), [Ready::Left(0)]);
        assert!(watches[0].turn(false, false, true));
        assert!(matches!(watches[0].state, State::Left(_)));
        thread::sleep(GRACE);
        assert!(!watches[0].turn(false, false, false));
        assert!(link.has_ended.load(Ordering::SeqCst));
    }

    #[test]
    fn what_the_system_does_not_give_is_looked_at_again_after_a_while() {
        let (mut link, other, _keepsake) = Link::new(false);
        let (branch, there) = Branch::beside(&link.connection).unwrap();
        Arc::get_mut(&mut link).unwrap().branch = Some(branch);
        other.send(FIRST_KIND, b"something", &[], Duration::ZERO).unwrap();
        drop(there);
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut watches = vec![Watch::new(Arc::<Link>::clone(&link))];
        assert_eq!(wait(&bell, &watches), [Ready::Connection(0), Ready::Branch(0)]);
        link.is_refused.store(true, Ordering::SeqCst);
        watches[0].is_branch_refused = true;
        for came in [true, false, false] {
            assert!(watches[0].turn(came, false, false) && watches[0].state == State::There);
            assert_eq!(wait(&bell, &watches), [], "the thread would do nothing else");
        }
        link.is_refused.store(false, Ordering::SeqCst);
        watches[0].is_branch_refused = false;
        assert!(watches[0].turn(false, false, false));
        assert_eq!(wait(&bell, &watches), [Ready::Connection(0), Ready::Branch(0)]);
        link.is_refused.store(true, Ordering::SeqCst);
        assert!(watches[0].turn(true, false, false));
        drop(other);
        assert!(wait(&bell, &watches).contains(&Ready::Connection(0)), "its end is heard");
        assert!(watches[0].turn(true, false, false));
        assert!(matches!(watches[0].state, State::Closed(_)));
    }
}
