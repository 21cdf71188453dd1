//! How two processes of a host talk: checked peers, bounded messages, descriptors, deadlines.
//!
//! A server has a [`Listener`], a client calls [`Connection::connect`]; a parent and its child use a [`pair`]. Either way both sides look at who
//! is there by what the system says, ask their [`PeerPolicy`], and exchange a hello with the versions that they speak, before anything else is
//! accepted. Then they have a [`Connection`] each, with a [`Peer`] that tells when the other process ends.
//!
//! A [`Message`] is a kind, at most [`MAX_PAYLOAD`] bytes and at most [`MAX_DESCRIPTORS`] descriptors, in a frame that is
//! checked whole. Descriptors travel with the message ([`Connection::send`]), and only once the peer is admitted. Waits have a [`Deadline`].
//!
//! Both processes must be on one host, in the same PID namespace, with `/proc` mounted, on Linux 5.6 or newer. The trust model: `docs/ipc.md`.

mod address;
mod channel;
mod closing;
mod connection;
mod deadline;
mod directory;
mod frame;
mod listener;
mod peer;
mod pending;
mod policy;
mod system;

pub use crate::error::MessageError;
pub use address::{Address, MAX_NAME};
pub(crate) use channel::guard;
#[cfg(test)]
pub(crate) use channel::refusal::refuse;
#[doc(hidden)]
pub use channel::without_descriptor_guard;
pub use closing::Descriptors;
pub use connection::{Connection, FIRST_KIND, Message};
pub(crate) use deadline::until;
pub use deadline::{Deadline, Poller};
#[doc(hidden)]
pub use frame::{Frame, HEADER, MAGIC, MAX_FRAME};
pub use frame::{MAX_DESCRIPTORS, MAX_PAYLOAD, VERSION};
pub use listener::Listener;
pub use peer::{Peer, start_time};
pub use pending::{Pending, pair};
pub use policy::PeerPolicy;
pub(crate) use system::peer_pid;
