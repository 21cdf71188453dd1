//! Tests that need a process of their own: started anew, or forked.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a child may take. Far longer than any needs: who takes it hangs.
const LIMIT: Duration = Duration::from_secs(60);

const MARK: &str = "CUDA_MEM_TEST_CHILD";

/// Runs the calling test again in a new process, with these environment variables, and returns how that ended. In the new
/// process it returns `None`, and the test does its work.
///
/// ```ignore
/// if let Some(output) = child::again("exit::clean", &[]) {
///     return child::expect_silent_success(&output);
/// }
/// ```
pub(crate) fn again(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args(["--exact", test, "--nocapture", "--quiet", "--test-threads=1"]);
    command.env(MARK, "1").env_remove("RUST_BACKTRACE").envs(variables.iter().copied());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("a new process");
    let id = libc::pid_t::try_from(child.id()).expect("a process id");
    let (done, watched) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(LIMIT).is_err() {
            // SAFETY: a child of this process that nobody has waited for yet.
            unsafe { libc::kill(id, libc::SIGKILL) };
        }
    });
    let output = child.wait_with_output().expect("the end of the process");
    done.send(()).ok();
    watch.join().expect("the watch");
    assert!(!output_is_of_no_test(&output), "no test is called {test}");
    Some(output)
}

/// Cargo's harness runs no test, successfully, if the name is wrong.
fn output_is_of_no_test(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stdout).contains("running 0 tests")
}

/// The process ended with exit code 0, and said nothing on its standard error stream.
pub(crate) fn expect_silent_success(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert_eq!(err, "", "{out}");
}

/// Forks, runs `body` in the child, and returns in the parent when the child has ended well.
///
/// The child may do nothing that needs other threads. It ends when `body` has returned, without exit handlers.
pub(crate) fn forked(body: impl FnOnce() -> Result<(), String>) {
    // SAFETY: the child runs `body` in its only thread, and then ends by `_exit`. The locks it may meet are those of the
    // allocator, which the C library makes usable after a fork, and those that the test is about.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no new process");
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let code = match result {
            Ok(Ok(())) => 0,
            Ok(Err(message)) => {
                say(&message);
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code) };
    }
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waits for the child that was just made; one status to write.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if ended == pid {
            assert!(
                libc::WIFEXITED(status),
                "the forked child was killed by signal {}",
                libc::WTERMSIG(status)
            );
            assert_eq!(
                libc::WEXITSTATUS(status),
                0,
                "the forked child found a fault; it is on the standard error stream"
            );
            return;
        }
        if start.elapsed() > LIMIT {
            // SAFETY: the child, which nobody has waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("the forked child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes to the standard error stream without the lock that another thread may have held at the fork.
fn say(message: &str) {
    // SAFETY: the message's own bytes.
    unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
}
