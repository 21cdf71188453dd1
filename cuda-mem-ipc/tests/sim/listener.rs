//! Where a listener may be, and what it does with what is there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use cuda_mem_core::Driver;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::symmetric::{Group, GroupOptions};
use cuda_mem_ipc::transport::{Address, Connection, Deadline, FIRST_KIND, Listener, PeerPolicy};
use cuda_mem_sim::Sim;
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::other::{LIMIT, Other, SHORT, connected, wait_for_exit};
use crate::own_sim::OwnSim;

/// A directory that nobody else has, gone at the end with what is in it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cuda-mem-listener-{}-{name}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        Self(path)
    }

    fn made(name: &str, mode: u32) -> Self {
        let place = Self::new(name);
        fs::create_dir(&place.0).unwrap();
        fs::set_permissions(&place.0, fs::Permissions::from_mode(mode)).unwrap();
        place
    }

    fn address(&self) -> Address {
        Address::in_directory(&self.0, "socket").unwrap()
    }

    fn file(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700)).ok();
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Both ends say a word.
fn expect_talk(listener: &Listener) {
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let connection =
                Connection::connect(listener.address(), &PeerPolicy::same_user(), LIMIT).unwrap();
            connection.send(FIRST_KIND, b"word", &[], LIMIT).unwrap();
        });
        let connection = listener.accept(LIMIT).unwrap().complete(&PeerPolicy::same_user(), LIMIT).unwrap();
        assert_eq!(connection.recv(LIMIT).unwrap().payload, b"word");
        assert_eq!(connection.peer().pid(), std::process::id());
        client.join().unwrap();
    });
}

/// A process that another test is starting has a copy of every socket until its program begins.
fn bound_when_free(address: &Address) -> Listener {
    let limit = Deadline::after(LIMIT);
    loop {
        match Listener::bind(address, limit) {
            Err(Error::InUse { .. }) if !limit.has_passed() => thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

#[test]
fn a_directory_is_made_for_its_owner_alone_and_left_empty() {
    let place = Place::new("made");
    let listener = Listener::bind(&place.address(), LIMIT).unwrap();
    assert_eq!(fs::metadata(&place.0).unwrap().permissions().mode() & 0o7777, 0o700);
    expect_talk(&listener);
    drop(listener);
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0);
    // And one that is there is used.
    expect_talk(&Listener::bind(&place.address(), LIMIT).unwrap());
}

#[test]
fn a_path_may_be_longer_than_an_address() {
    let place = Place::made("long", 0o700);
    let deep = place.0.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir(deep.parent().unwrap()).unwrap();
    let address = Address::in_directory(&deep, &"n".repeat(64)).unwrap();
    expect_talk(&Listener::bind(&address, LIMIT).unwrap());
}

#[test]
fn a_directory_that_others_enter_or_that_is_none_is_refused() {
    for mode in [0o755, 0o770, 0o701, 0o500, 0o1700] {
        let place = Place::made(&format!("mode-{mode:o}"), mode);
        match Listener::bind(&place.address(), LIMIT) {
            Err(Error::WrongMode { path, mode: found }) => assert_eq!((path, found), (place.0.clone(), mode)),
            other => panic!("{mode:o}: {other:?}"),
        }
        assert!(!place.file().exists());
    }
    let place = Place::made("kinds", 0o700);
    fs::create_dir(place.0.join("real")).unwrap();
    fs::set_permissions(place.0.join("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("real", place.0.join("link")).unwrap();
    fs::write(place.0.join("file"), b"").unwrap();
    let bind = |directory: &str| {
        Listener::bind(&Address::in_directory(place.0.join(directory), "socket").unwrap(), LIMIT)
    };
    bind("real/").unwrap();
    for none in ["link", "link/", "link/.", "file"] {
        assert!(matches!(bind(none), Err(Error::NotADirectory { .. })), "{none}: {:?}", bind(none));
    }
    assert!(matches!(bind("missing/deeper"), Err(Error::Directory { .. })));
}

#[test]
fn what_belongs_to_somebody_else_is_left_alone() {
    let own = geteuid().as_raw();
    let wrong_owner = |result: Result<Listener, Error>, path: &Path| match result {
        Err(Error::WrongOwner { path: found, owner, accepted }) => {
            assert_eq!((&*found, accepted), (path, own));
            assert_ne!(owner, own);
        }
        other => panic!("{other:?}"),
    };
    if own != 0 {
        let roots = Address::in_directory("/usr", "socket").unwrap();
        return wrong_owner(Listener::bind(&roots, LIMIT), Path::new("/usr"));
    }
    let place = Place::made("owner", 0o700);
    drop(std::os::unix::net::UnixListener::bind(place.file()).unwrap());
    chown(place.file(), Some(4711), None).unwrap();
    wrong_owner(Listener::bind(&place.address(), LIMIT), &place.file());
    assert!(place.file().exists());
    chown(&place.0, Some(4711), None).unwrap();
    wrong_owner(Listener::bind(&place.address(), LIMIT), &place.0);
}

#[test]
fn a_name_that_somebody_listens_at_is_in_use() {
    let place = Place::new("use");
    let listener = Listener::bind(&place.address(), LIMIT).unwrap();
    match Listener::bind(&place.address(), LIMIT) {
        Err(Error::InUse { address }) => assert_eq!(address, place.address().to_string()),
        other => panic!("{other:?}"),
    }
    // The one that asked whether somebody is there has left: it is a client that says nothing.
    assert!(listener.accept(LIMIT).unwrap().complete(&PeerPolicy::same_user(), LIMIT).unwrap_err().is_gone());
    expect_talk(&listener);
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let place = Place::made("file", 0o700);
    fs::write(place.file(), b"precious").unwrap();
    assert!(
        matches!(Listener::bind(&place.address(), LIMIT), Err(Error::NotASocket { path }) if path == place.file())
    );
    assert_eq!(fs::read(place.file()).unwrap(), b"precious");
    fs::rename(place.file(), place.0.join("target")).unwrap();
    symlink("target", place.file()).unwrap();
    assert!(matches!(Listener::bind(&place.address(), LIMIT), Err(Error::NotASocket { .. })));
    assert_eq!(fs::read(place.0.join("target")).unwrap(), b"precious");
}

#[test]
fn the_socket_of_a_killed_process_is_replaced_by_one_of_many() {
    let place = Place::new(&format!("killed-{}", std::os::unix::process::parent_id()));
    if let Some(connection) = connected() {
        let path = String::from_utf8(connection.recv(LIMIT).unwrap().payload).unwrap();
        let _listener = Listener::bind(&Address::in_directory(path, "socket").unwrap(), LIMIT).unwrap();
        connection.send(FIRST_KIND, b"", &[], LIMIT).unwrap();
        connection.recv(LIMIT).unwrap_err();
        return;
    }
    let (other, connection) =
        Other::start("listener::the_socket_of_a_killed_process_is_replaced_by_one_of_many");
    connection.send(FIRST_KIND, place.0.to_str().unwrap().as_bytes(), &[], LIMIT).unwrap();
    connection.recv(LIMIT).unwrap();
    assert!(matches!(Listener::bind(&place.address(), LIMIT), Err(Error::InUse { .. })));
    other.signal(Signal::KILL);
    wait_for_exit(connection.peer());
    assert!(place.file().exists(), "a killed process removes nothing");

    let bind = || Listener::bind(&place.address(), LIMIT);
    let results = thread::scope(|scope| {
        let racing = (0..8).map(|_| scope.spawn(bind)).collect::<Vec<_>>();
        racing.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    assert!(lost.iter().all(|result| matches!(result, Err(Error::InUse { .. }))), "{lost:?}");
    let listener = won.into_iter().next().unwrap().unwrap();
    // Clients that only asked whether somebody is there, some of the seven.
    while let Ok(pending) = listener.accept(Duration::ZERO) {
        assert!(pending.complete(&PeerPolicy::same_user(), LIMIT).unwrap_err().is_gone());
    }
    expect_talk(&listener);
}

/// Data loaders are forked and live on, with copies of everything.
#[test]
fn the_socket_of_a_killed_process_is_replaced_though_a_forked_child_has_it() {
    let place = Place::new(&format!("forked-{}", std::os::unix::process::parent_id()));
    if let Some(connection) = connected() {
        let path = String::from_utf8(connection.recv(LIMIT).unwrap().payload).unwrap();
        let _listener = Listener::bind(&Address::in_directory(path, "ranks.0").unwrap(), LIMIT).unwrap();
        // SAFETY: the child does nothing but wait for its end, in its only thread.
        let loader = unsafe { libc::fork() };
        if loader == 0 {
            // SAFETY: ends the process in a minute, should the test not do so.
            unsafe { libc::alarm(60) };
            loop {
                // SAFETY: has no arguments.
                unsafe { libc::pause() };
            }
        }
        connection.send(FIRST_KIND, &loader.to_ne_bytes(), &[], LIMIT).unwrap();
        connection.recv(LIMIT).unwrap_err();
        return;
    }
    let (other, connection) =
        Other::start("listener::the_socket_of_a_killed_process_is_replaced_though_a_forked_child_has_it");
    connection.send(FIRST_KIND, place.0.to_str().unwrap().as_bytes(), &[], LIMIT).unwrap();
    let address = Address::in_directory(&place.0, "ranks.0").unwrap();
    let loader = connection.recv(LIMIT).unwrap().payload.try_into().unwrap();
    assert!(matches!(Listener::bind(&address, LIMIT), Err(Error::InUse { .. })));
    other.signal(Signal::KILL);
    wait_for_exit(connection.peer());
    let nobody = Connection::connect(&address, &PeerPolicy::same_user(), LIMIT);
    assert!(matches!(nobody, Err(Error::PeerExited { .. })), "the child has no copy: {nobody:?}");
    // A rank that comes first tries again and again, and leaves room for the one that comes next.
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let join = |rank| Group::join(&context, "ranks", rank, 2, &place.0, &GroupOptions::default());
    let groups = thread::scope(|scope| {
        let early = scope.spawn(|| join(1));
        thread::sleep(Duration::from_secs(1));
        [join(0), early.join().unwrap()]
    });
    drop(groups.map(Result::unwrap));
    expect_talk(&Listener::bind(&address, LIMIT).unwrap());
    kill_process(Pid::from_raw(i32::from_ne_bytes(loader)).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_file_that_took_the_place_of_ours_is_not_removed() {
    let place = Place::new("moved");
    let listener = Listener::bind(&place.address(), LIMIT).unwrap();
    fs::rename(place.file(), place.0.join("elsewhere")).unwrap();
    fs::write(place.file(), b"another's").unwrap();
    drop(listener);
    assert_eq!(fs::read(place.file()).unwrap(), b"another's");
}

#[test]
fn abstract_names_leave_no_file_and_have_one_owner() {
    let address = Address::abstract_name(&format!("cuda-mem-test-{}", std::process::id())).unwrap();
    let nobody = Connection::connect(&address, &PeerPolicy::same_user(), LIMIT);
    assert!(matches!(nobody, Err(Error::NotListening { .. })), "{nobody:?}");
    let listener = Listener::bind(&address, LIMIT).unwrap();
    assert!(matches!(Listener::bind(&address, LIMIT), Err(Error::InUse { .. })));
    expect_talk(&listener);
    // Everybody can come in: who is admitted has to be said on either side.
    let refused = Connection::connect(&address, &PeerPolicy::default(), LIMIT);
    assert!(matches!(refused, Err(Error::ImplicitPolicy)), "{refused:?}");
    thread::scope(|scope| {
        let client = scope.spawn(|| Connection::connect(&address, &PeerPolicy::same_user(), LIMIT));
        let refused = listener.accept(LIMIT).unwrap().complete(&PeerPolicy::default(), LIMIT);
        assert!(matches!(refused, Err(Error::ImplicitPolicy)), "{refused:?}");
        assert!(client.join().unwrap().unwrap_err().is_gone());
    });
    drop(listener);
    expect_talk(&bound_when_free(&address));
}

#[test]
fn nobody_listens_at_a_missing_a_dead_and_another_kind_of_socket() {
    let place = Place::new("nobody");
    let refused = || match Connection::connect(&place.address(), &PeerPolicy::same_user(), LIMIT) {
        Err(Error::NotListening { address, .. }) => assert_eq!(address, place.address().to_string()),
        other => panic!("{other:?}"),
    };
    refused();
    let _place = Place::made("nobody", 0o700);
    refused();
    let stream = std::os::unix::net::UnixListener::bind(place.file()).unwrap();
    refused();
    assert!(matches!(Listener::bind(&place.address(), LIMIT), Err(Error::InUse { .. })));
    drop(stream);
    refused();
    expect_talk(&bound_when_free(&place.address()));
}

#[test]
fn a_full_queue_and_a_missing_client_are_deadlines() {
    let place = Place::new("full");
    let listener = Listener::bind(&place.address(), LIMIT).unwrap();
    assert!(listener.accept(SHORT).unwrap_err().is_timeout());
    let connect = |limit| Connection::connect(listener.address(), &PeerPolicy::same_user(), limit);
    // Nobody accepts: each times out, first while it waits for a hello, and leaves its place in the queue taken.
    let mut waited_for = std::collections::HashSet::new();
    for _ in 0..140 {
        match connect(Duration::from_millis(1)) {
            Err(Error::Timeout { what }) => waited_for.insert(what),
            other => panic!("{other:?}"),
        };
    }
    assert!(waited_for.contains("the listener had taken the connection"), "{waited_for:?}");
}
