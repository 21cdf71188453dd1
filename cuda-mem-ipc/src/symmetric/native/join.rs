//! How the ranks of a group come together.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::Context;

use super::directory::{Directory, MAX_RANKS};
use super::message::{self, Hello};
use super::state::State;
use super::{Group, GroupOptions, words};
use crate::error::Error as TransportError;
use crate::memory_file;
use crate::primitive::refuse_forked;
use crate::symmetric::{Error, Result, Why};
use crate::transport::{Address, Connection, Deadline, Listener, Message, Pending, Poller, peer_pid};

/// For what is there already.
const AT_ONCE: Duration = Duration::ZERO;
/// How many clients may be connected, beside the ranks that are missing, without a word.
const MOST_STRANGERS: usize = 64;

/// A process that has connected, and has not said yet which rank it is.
enum Client {
    Connected(Pending),
    Admitted(Connection),
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connected(pending) => pending.as_fd(),
            Self::Admitted(connection) => connection.as_fd(),
        }
    }
}

struct Joining<'j> {
    name: &'j str,
    rank: usize,
    ranks: usize,
    options: &'j GroupOptions,
    deadline: Deadline,
}

impl Group {
    /// Joins the group `name` of `world_size` ranks as rank `rank`, with the context's device. Each rank listens in `directory`,
    /// which is made with mode 0700 and is the same for all. Returns when all ranks are there.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], which names the ranks that did not come; [`Error::NotAccepted`] for numbers that cannot be
    /// or that differ on the ranks, [`Error::Join`] for a name or a directory that cannot be used; [`Error::Transport`], [`Error::OtherGroup`],
    /// [`Error::RankTaken`] for processes that are found at a lower rank's place and are no ranks of this group; [`Error::Core`].
    /// A process that connects to this rank's socket and is no rank of this group gets an error, and is not waited for.
    pub fn join(
        context: &Context,
        name: &str,
        rank: usize,
        world_size: usize,
        directory: impl AsRef<Path>,
        options: &GroupOptions,
    ) -> Result<Self> {
        refuse_forked()?;
        let joining = Joining::new(name, rank, world_size, options)?;
        let connections = joining.connect(directory.as_ref())?;
        joining.complete(context, connections)
    }
}

impl<'j> Joining<'j> {
    fn new(name: &'j str, rank: usize, ranks: usize, options: &'j GroupOptions) -> Result<Self> {
        Error::check("the number of ranks", ranks, 1..=MAX_RANKS)?;
        Error::check("the rank", rank, 0..=ranks - 1)?;
        Error::check("the number of allocations of a segment", options.segment_allocations, 1..=words::MOST)?;
        Ok(Self { name, rank, ranks, options, deadline: Deadline::after(options.timeout) })
    }

    fn failed(&self, source: TransportError) -> Error {
        Error::Join { group: self.name.to_owned(), source }
    }

    fn missing(&self, ranks: Vec<usize>, what: &'static str) -> Error {
        Error::Missing { ranks, what, waited: self.options.timeout }
    }

    fn connect(&self, directory: &Path) -> Result<Vec<Option<Connection>>> {
        let address = |rank: usize| Address::in_directory(directory, &format!("{}.{rank}", self.name));
        let mut slots = (0..self.ranks).map(|_| None).collect::<Vec<_>>();
        let own = address(self.rank).map_err(|source| self.failed(source))?;
        let listener = Listener::bind(&own, self.deadline).map_err(|source| self.failed(source))?;
        for rank in 0..self.rank {
            let address = address(rank).map_err(|source| self.failed(source))?;
            let connection = Connection::connect_soon(&address, &self.options.policy, self.deadline);
            let connection = connection.map_err(|error| match error {
                TransportError::NotListening { .. }
                | TransportError::PeerExited { .. }
                | TransportError::Timeout { .. } => self.missing(vec![rank], "join"),
                source => Error::Transport { rank, source },
            })?;
            let failed = |source: TransportError| match source {
                TransportError::Timeout { .. } => self.missing(vec![rank], "say who it is"),
                source => Error::Transport { rank, source },
            };
            self.say_hello(&connection, self.deadline).map_err(failed)?;
            let told = self.rank_of(connection.recv(self.deadline).map_err(failed)?, Some(rank))?;
            self.enter(&mut slots, told, connection)?;
        }
        self.accept(&listener, &mut slots)?;
        Ok(slots)
    }

    /// Waits for the ranks with higher numbers. A client that says nothing is not waited for. A client that says something else, or is not
    /// admitted, is no rank of this group. Neither delays the ranks.
    fn accept(&self, listener: &Listener, slots: &mut [Option<Connection>]) -> Result<()> {
        let mut clients = Vec::<Client>::new();
        loop {
            let above = slots.iter().enumerate().skip(self.rank + 1);
            let missing = above.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| rank).collect::<Vec<_>>();
            if missing.is_empty() {
                return Ok(());
            }
            let mut poller = Poller::new();
            poller.readable(None, listener);
            for (place, client) in clients.iter().enumerate() {
                poller.readable(Some(place), client);
            }
            let ready = poller.wait(self.deadline).map_err(|source| self.failed(source))?;
            if ready.is_empty() || self.deadline.has_passed() {
                return Err(self.missing(missing, "join"));
            }
            // From the last on: the places of the clients before stay as they are. The listener is the first.
            for place in ready.into_iter().rev() {
                let heard = match place {
                    // The first client of the process that has the most makes room: otherwise descriptors would run out.
                    None if clients.len() >= missing.len() + MOST_STRANGERS => {
                        let pids = clients.iter().map(|one| peer_pid(one.as_fd())).collect::<Vec<_>>();
                        let of_its = |place: &usize| pids.iter().filter(|pid| **pid == pids[*place]).count();
                        drop(clients.remove((0..pids.len()).rev().max_by_key(of_its).unwrap_or(0)));
                        Ok(None)
                    }
                    None => listener.accept(AT_ONCE).map(|pending| Some(Client::Connected(pending))),
                    Some(place) => self.hear_out(clients.swap_remove(place), slots),
                };
                match heard {
                    Ok(client) => clients.extend(client),
                    Err(source @ (TransportError::System { .. } | TransportError::Forked { .. })) => {
                        return Err(self.failed(source));
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Takes the next message of a client, and enters the client if it is a rank that is missing. A client that is returned has more to say.
    fn hear_out(
        &self,
        client: Client,
        slots: &mut [Option<Connection>],
    ) -> Result<Option<Client>, TransportError> {
        match client {
            Client::Connected(pending) => {
                let connection = pending.complete(&self.options.policy, AT_ONCE)?;
                self.say_hello(&connection, AT_ONCE)?;
                Ok(Some(Client::Admitted(connection)))
            }
            Client::Admitted(connection) => {
                let heard = connection.recv(AT_ONCE)?;
                // A client of another group, or one that comes as a rank that is there, sees the connection end.
                if let Ok(rank) = self.rank_of(heard, None) {
                    let _ = self.enter(slots, rank, connection);
                }
                Ok(None)
            }
        }
    }

    fn say_hello(
        &self,
        connection: &Connection,
        deadline: impl Into<Deadline>,
    ) -> Result<(), TransportError> {
        let [rank, ranks, allocations] =
            [self.rank, self.ranks, self.options.segment_allocations].map(|number| number as u64);
        let own = Hello { rank, ranks, allocations, group: self.name.to_owned() };
        connection.send(message::HELLO, &own.encode(), &[], deadline)
    }

    /// The rank that a hello is of. It must be `expected`, if that is known.
    fn rank_of(&self, heard: Message, expected: Option<usize>) -> Result<usize> {
        let failed = |source| Error::Transport { rank: expected.unwrap_or(self.ranks), source };
        let (kind, bytes) = (heard.kind, heard.payload.len());
        let hello = Hello::parse(&heard.payload).filter(|_| kind == message::HELLO);
        let hello = hello.ok_or_else(|| failed(TransportError::NoHello { kind, bytes }))?;
        let ours = (message::VERSION, message::VERSION);
        let other = |theirs| failed(TransportError::NoCommonVersion { theirs: (theirs, theirs), ours });
        let hello = hello.map_err(other)?;
        let told = usize::try_from(hello.rank).unwrap_or(usize::MAX);
        if hello.group != self.name || hello.ranks != self.ranks as u64 {
            return Err(Error::OtherGroup {
                rank: told,
                theirs: hello.group,
                their_size: hello.ranks,
                ours: self.name.to_owned(),
                our_size: self.ranks,
            });
        }
        let (theirs, ours) = (usize::try_from(hello.allocations), self.options.segment_allocations);
        let what = "the number of allocations of a segment on another rank";
        Error::check(what, theirs.unwrap_or(usize::MAX), ours..=ours)?;
        if expected.is_some_and(|expected| expected != told) {
            return Err(Error::RankTaken { rank: told, world_size: self.ranks });
        }
        Ok(told)
    }

    fn enter(&self, slots: &mut [Option<Connection>], rank: usize, connection: Connection) -> Result<()> {
        match slots.get_mut(rank) {
            Some(slot @ None) if rank != self.rank => {
                *slot = Some(connection);
                Ok(())
            }
            _ => Err(Error::RankTaken { rank, world_size: self.ranks }),
        }
    }

    /// Shares the directory, and waits until all ranks have mapped it.
    fn complete(&self, context: &Context, connections: Vec<Option<Connection>>) -> Result<Group> {
        let directory = match connections.first() {
            Some(Some(first)) => {
                let failed = |source| Error::Transport { rank: 0, source };
                let message = first.recv(self.deadline).map_err(failed)?;
                let (kind, bytes) = (message.kind, message.payload.len());
                if kind != message::DIRECTORY {
                    return Err(failed(TransportError::NoHello { kind, bytes }));
                }
                Directory::open(memory_file::open(message.descriptors).map_err(failed)?, self.ranks)?
            }
            _ => {
                let directory = Directory::create(self.ranks)?;
                let descriptor = directory.mapping.as_fd();
                for (rank, connection) in connections.iter().enumerate() {
                    let Some(connection) = connection else { continue };
                    let sent = connection.send(message::DIRECTORY, &[], &[descriptor], self.deadline);
                    sent.map_err(|source| Error::Transport { rank, source })?;
                }
                directory
            }
        };
        let state = State::new(self.name, self.rank, connections, directory);
        let state = Arc::new(state.map_err(|source| self.failed(source))?);
        let group = Group::of(context, &state, self.options);
        // Before its connections end, which says that it has died.
        let group = group.inspect_err(|_| state.directory.break_by(self.rank, Why::Failed))?;
        group.inner.meet("join", Ok(0), true)?;
        // All ranks have mapped it.
        let sealed = group.inner.state.directory.mapping.seal();
        group.inner.settle("join", 0, sealed.map_err(Error::from))?;
        Ok(group)
    }
}
