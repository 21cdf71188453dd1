//! Child processes with a time limit: whatever hangs is killed with everything it started.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use anyhow::{Context, Result};

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(i32),
    Killed { signal: i32 },
    TimedOut { limit: Duration },
}

impl Ending {
    pub(crate) fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Killed { signal } => write!(f, "was killed by signal {signal}"),
            Self::TimedOut { limit } => write!(f, "was still running after {} s", limit.as_secs()),
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Killed { signal: signal.unwrap_or_default() },
        }
    }
}

/// Runs a command in a process group of its own, both outputs into `log`, and waits for it.
///
/// `tick` is called a few times a second, for whoever shows progress. Past `limit` the whole group is killed.
pub(crate) fn run(
    command: &mut Command,
    log: &File,
    limit: Duration,
    tick: &mut dyn FnMut(),
) -> Result<Ending> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    own_group(command);
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.into());
        }
        if started.elapsed() >= limit {
            kill_group(&child);
            child.wait()?;
            return Ok(Ending::TimedOut { limit });
        }
        tick();
        thread::sleep(pause);
        // Short tests end at once, long ones are not polled in vain.
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Makes a command a process group of its own, so that [`kill_group`] ends it with everything it started.
pub(crate) fn own_group(command: &mut Command) {
    command.process_group(0);
    die_with_this_process(command);
}

/// A group of its own hears no Ctrl-C from the terminal, so the child is told to end when this process does.
fn die_with_this_process(command: &mut Command) {
    // The closure runs in the forked child before exec.
    let ask = || {
        // SAFETY: prctl is a bare system call, which a forked child of a threaded process may make; this option takes
        // one number and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: the closure neither allocates nor takes locks.
    unsafe { command.pre_exec(ask) };
}

/// Kills a child and all it started that stayed in its group.
pub(crate) fn kill_group(child: &Child) {
    let Ok(group) = i32::try_from(child.id()) else { return };
    // SAFETY: the number is that of a child that was not waited for, so it still names the group that was made for it.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ending {
        let log = File::options().write(true).open("/dev/null").unwrap();
        run(Command::new("sh").args(["-c", script]), &log, limit, &mut || ()).unwrap()
    }

    #[test]
    fn endings_are_told_apart() {
        let minute = Duration::from_secs(60);
        assert_eq!(shell("exit 0", minute), Ending::Exited(0));
        assert_eq!(shell("exit 3", minute), Ending::Exited(3));
        assert_eq!(shell("kill -SEGV $$", minute), Ending::Killed { signal: libc::SIGSEGV });
    }

    #[test]
    fn a_hang_is_ended_with_its_children() {
        let marker = std::env::temp_dir().join(format!("xtask-hang-{}", std::process::id()));
        let script = format!("(sleep 1; touch {}) & sleep 60", marker.display());
        let limit = Duration::from_millis(200);
        assert_eq!(shell(&script, limit), Ending::TimedOut { limit });
        thread::sleep(Duration::from_millis(1200));
        assert!(!marker.exists(), "a grandchild outlived the row");
    }
}
