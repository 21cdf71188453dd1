//! Which peers are admitted.

use std::fmt;
use std::fs;
use std::sync::{Arc, OnceLock};

use super::peer::Peer;
use crate::error::{Error, Result};

type Predicate = Arc<dyn Fn(&Peer) -> bool + Send + Sync>;

/// Who may be at the other end. By default it is the effective user of this process, of whatever group, and never a user that this user
/// namespace does not know: the system shows all of those as one (`/proc/sys/kernel/overflowuid`).
///
/// It is asked before anything of the peer's is accepted; all that it demands must hold.
///
/// ```
/// use cuda_mem_ipc::transport::PeerPolicy;
///
/// // Users 1000 and 1001, and of those only one process.
/// let policy = PeerPolicy::default().with_uids([1000, 1001]).with_predicate(|peer| peer.pid() == 4711);
/// assert_eq!(policy.to_string(), "users 1000, 1001, and as the program's own predicate says");
/// ```
#[derive(Clone)]
pub struct PeerPolicy {
    uids: Vec<u32>,
    predicate: Option<Predicate>,
    /// Whether it is the default.
    is_implicit: bool,
}

impl PeerPolicy {
    /// Admits the effective user of this process, as the default does, and says so: at an abstract name nothing else keeps others out.
    #[must_use]
    pub fn same_user() -> Self {
        Self { is_implicit: false, ..Self::default() }
    }

    /// Admits these users in place of those before.
    #[must_use]
    pub fn with_uids(self, uids: impl IntoIterator<Item = u32>) -> Self {
        Self { uids: uids.into_iter().collect(), is_implicit: false, ..self }
    }

    /// Admits only peers that the function accepts. It is asked last, and replaces one that was set before.
    #[must_use]
    pub fn with_predicate(self, predicate: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        Self { predicate: Some(Arc::new(predicate)), is_implicit: false, ..self }
    }

    /// Refuses the default policy at an address that every process reaches.
    pub(super) fn expect_explicit(&self, is_public: bool) -> Result<()> {
        if is_public && self.is_implicit { Err(Error::ImplicitPolicy) } else { Ok(()) }
    }

    pub(super) fn check(&self, peer: &Peer) -> Result<()> {
        let admitted = self.uids.contains(&peer.uid())
            && self.predicate.as_ref().is_none_or(|predicate| predicate(peer));
        if admitted {
            return Ok(());
        }
        let (uid, gid, pid) = (peer.uid(), peer.gid(), peer.pid());
        Err(Error::PeerRefused { uid, gid, pid, accepted: self.to_string() })
    }
}

impl Default for PeerPolicy {
    fn default() -> Self {
        let own = rustix::process::geteuid().as_raw();
        let uids = if unmapped_user() == Some(own) { Vec::new() } else { vec![own] };
        Self { uids, predicate: None, is_implicit: true }
    }
}

/// What the system shows users as that this user namespace does not know; none if it knows all.
fn unmapped_user() -> Option<u32> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    *UNMAPPED.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let user = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        unmapped_of(&map, user.as_deref())
    })
}

/// The same of the files' texts. The number of all users but one, which nobody is, is the system's first namespace's.
fn unmapped_of(map: &str, user: Option<&str>) -> Option<u32> {
    let counts = map.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok());
    let knows_all = counts.sum::<u64>() >= u64::from(u32::MAX);
    (!knows_all).then(|| user.and_then(|user| user.trim().parse().ok()).unwrap_or(65_534))
}

/// What it accepts, in words.
impl fmt::Display for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.uids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "users {}", if users.is_empty() { "none" } else { &users })?;
        f.write_str(if self.predicate.is_some() { ", and as the program's own predicate says" } else { "" })
    }
}

crate::impl_debug!(PeerPolicy, |it| accepted: format_args!("{it}"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::system::Credentials;

    fn admitted(policy: &PeerPolicy, uid: u32, gid: u32) -> bool {
        let pid = std::process::id().cast_signed();
        let peer = Peer::of_credentials(Credentials { pid, uid, gid }).unwrap();
        match policy.check(&peer) {
            Ok(()) => true,
            Err(Error::PeerRefused { uid: said, accepted, .. }) => {
                assert_eq!((said, accepted), (uid, policy.to_string()));
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn all_that_a_policy_demands_must_hold() {
        let own = rustix::process::geteuid().as_raw();
        let policy = PeerPolicy::default();
        assert!(admitted(&policy, own, 77) && !admitted(&policy, own + 1, 77));
        let policy = policy.with_uids([1, 2]);
        assert!(admitted(&policy, 2, 77) && !admitted(&policy, 3, 77));
        let policy = policy.with_predicate(|peer| peer.gid() == 5);
        assert!(admitted(&policy, 1, 5) && !admitted(&policy, 1, 6) && !admitted(&policy, 3, 5));
        let policy = policy.with_predicate(|peer| peer.uid() == 2 && peer.gid() == 5);
        assert!(admitted(&policy, 2, 5) && !admitted(&policy, 1, 5) && !admitted(&policy, 2, 6));
        assert!(!admitted(&PeerPolicy::default().with_uids([]), own, 0));
    }

    #[test]
    fn users_that_the_namespace_does_not_know_are_not_the_same_user() {
        assert_eq!(unmapped_of("         0          0 4294967295\n", Some("65534\n")), None);
        assert_eq!(unmapped_of("0 1000 1\n1 100000 65536\n", Some("65534\n")), Some(65_534));
        assert_eq!(unmapped_of("", Some("99\n")), Some(99));
        assert_eq!(unmapped_of("", None), Some(65_534));
    }
}
