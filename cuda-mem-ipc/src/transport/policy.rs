//! Who is admitted.

use std::fmt;
use std::sync::Arc;

use super::peer::Peer;
use crate::error::{Error, Result};

type Predicate = Arc<dyn Fn(&Peer) -> bool + Send + Sync>;

/// Who may be at the other end. By default it is the effective user of this process, of whatever group.
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
    gids: Option<Vec<u32>>,
    predicate: Option<Predicate>,
}

impl PeerPolicy {
    /// Admits these users in place of those before.
    #[must_use]
    pub fn with_uids(self, uids: impl IntoIterator<Item = u32>) -> Self {
        Self { uids: uids.into_iter().collect(), ..self }
    }

    /// Admits these groups only; without it, every group. The peer's groups beside its first are not looked at.
    #[must_use]
    pub fn with_gids(self, gids: impl IntoIterator<Item = u32>) -> Self {
        Self { gids: Some(gids.into_iter().collect()), ..self }
    }

    /// Admits only whom the function says yes to. It is asked last, and replaces one that was set before.
    #[must_use]
    pub fn with_predicate(self, predicate: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Self {
        Self { predicate: Some(Arc::new(predicate)), ..self }
    }

    pub(super) fn check(&self, peer: &Peer) -> Result<()> {
        let admitted = self.uids.contains(&peer.uid())
            && self.gids.as_ref().is_none_or(|gids| gids.contains(&peer.gid()))
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
        Self { uids: vec![rustix::process::geteuid().as_raw()], gids: None, predicate: None }
    }
}

/// What it accepts, in words.
impl fmt::Display for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &[u32]| match ids {
            [] => "none".to_owned(),
            ids => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        };
        write!(f, "users {}", list(&self.uids))?;
        if let Some(gids) = &self.gids {
            write!(f, ", of groups {}", list(gids))?;
        }
        f.write_str(if self.predicate.is_some() { ", and as the program's own predicate says" } else { "" })
    }
}

impl fmt::Debug for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerPolicy({self})")
    }
}

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
        let policy = policy.with_gids([5]);
        assert!(admitted(&policy, 1, 5) && !admitted(&policy, 1, 6) && !admitted(&policy, 3, 5));
        let policy = policy.with_predicate(|peer| peer.uid() == 2);
        assert!(admitted(&policy, 2, 5) && !admitted(&policy, 1, 5) && !admitted(&policy, 2, 6));
        assert!(!admitted(&PeerPolicy::default().with_uids([]), own, 0));
    }
}
