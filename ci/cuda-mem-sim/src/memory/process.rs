//! Whether another process lives, told apart from a later one of the same number.

use std::sync::OnceLock;

/// A number for a process that lives: its own, and when it began. None for one that has ended, waited for or not.
pub(super) fn identity(process: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in brackets and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let began: u64 = fields.nth(18)?.parse().ok()?;
    let ended = matches!(state, "Z" | "X" | "x");
    // At most 2^22 processes; the beginning of one is told in hundredths of a second.
    (!ended).then_some(process << 40 | began & ((1 << 40) - 1))
}

/// The number of this process.
pub(super) fn own_identity() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    let process = std::process::id().into();
    *OWN.get_or_init(|| identity(process).unwrap_or(process << 40))
}

/// Whether the process that had a number from [`identity`] still lives.
pub(super) fn lives(identified: u64) -> bool {
    identity(identified >> 40) == Some(identified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_lives_until_it_ends_and_not_until_it_is_waited_for() {
        assert!(lives(own_identity()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let number = u64::from(child.id());
        let first = identity(number).unwrap();
        assert!(lives(first) && !lives(first ^ 1));
        child.kill().unwrap();
        while lives(first) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(identity(number), None);
    }
}
