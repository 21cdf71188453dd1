//! Exporters and importers that find each other by a name.

use cuda_mem_pool::cuda_mem_core::Context;

use super::{Exporter, Importer};
use crate::error::{Error, Result};
use crate::primitive::refuse_forked;
use crate::transport::{Address, Connection, Deadline, Listener, PeerPolicy};

impl Exporter {
    /// Waits at a name for one importer of this user, which calls [`Importer::connect`]: at [`Address::of_user`]. A process that is not
    /// admitted is turned away. One that is admitted and says nothing is waited for until the deadline. For several importers, other users or
    /// other places, make connections with a [`Listener`].
    ///
    /// ```
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
    ///
    /// const LIMIT: Duration = Duration::from_secs(10);
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let stream = Stream::new(&context)?;
    /// let buffer = SharedPool::new(&context, &SharedPoolOptions::default())?.allocate(4096, &stream)?;
    /// buffer.as_range::<u32>()?.copy_from_slice(&stream, &[7; 1024])?;
    /// let name = format!("trainer-{}", std::process::id());
    ///
    /// // The other process; here a thread.
    /// let (theirs, there) = (context.clone(), name.clone());
    /// let other = thread::spawn(move || {
    ///     let importer = Importer::connect(&there, &theirs, LIMIT)?;
    ///     let received = importer.recv(LIMIT)?;
    ///     let mut found = [0; 1024];
    ///     received.as_range::<u32>()?.copy_to_slice(&Stream::new(&theirs)?, &mut found)?; // behind the exporter's work
    ///     Ok::<_, cuda_mem_ipc::Error>(found) // dropped, it goes back
    /// });
    ///
    /// let exporter = Exporter::listen(&name, &context, LIMIT)?;
    /// exporter.hand_over(&buffer, &stream, LIMIT)?;
    /// exporter.returned(LIMIT)?;
    /// # assert_eq!(other.join().map_err(|_| "panicked")??, [7; 1024]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Address::of_user`], [`Listener::bind`] and [`Exporter::new`]; [`Error::Timeout`] when no importer comes.
    pub fn listen(name: &str, context: &Context, deadline: impl Into<Deadline>) -> Result<Self> {
        refuse_forked()?;
        let deadline = deadline.into();
        let listener = Listener::bind(&Address::of_user(name)?, deadline)?;
        loop {
            let connection = listener.accept(deadline)?.complete(&PeerPolicy::default(), deadline);
            match connection.and_then(|connection| Self::new(context, connection, deadline)) {
                Err(error) if is_of_client(&error) && !deadline.has_passed() => {}
                result => return result,
            }
        }
    }
}

impl Importer {
    /// Connects to the exporter that [listens](Exporter::listen) at a name, as soon as one does. [`Exporter::listen`] has an example.
    ///
    /// # Errors
    ///
    /// Those of [`Address::of_user`], [`Connection::connect`] and [`Importer::new`]; [`Error::NotListening`] and [`Error::PeerExited`] when there is
    /// no listener until the deadline; [`Error::Closed`] if it has just taken another importer.
    pub fn connect(name: &str, context: &Context, deadline: impl Into<Deadline>) -> Result<Self> {
        refuse_forked()?;
        let (deadline, address) = (deadline.into(), Address::of_user(name)?);
        let connection = Connection::connect_soon(&address, &PeerPolicy::default(), deadline)?;
        Self::new(context, connection, deadline)
    }
}

/// Whether an error is one of the process that connected, and not of this one.
fn is_of_client(error: &Error) -> bool {
    !matches!(error, Error::System { .. } | Error::Timeout { .. } | Error::Forked { .. } | Error::Core(_))
}
