//! The tour, as a newcomer runs it, on files that are ordinary and files that are not.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The size of one window of the tour, and so of what has no edge in it.
const WINDOW: u64 = 256 << 20;

/// A file that is gone with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, len: u64) -> Self {
        let path = std::env::temp_dir().join(format!("cuda-mem-tour-test-{}-{name}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"the first bytes are not zero").unwrap();
        file.set_len(len).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

fn tour(file: &Path, simulator: &str) -> Command {
    let mut command = tour_without_a_file(simulator);
    command.arg(file);
    command
}

/// The tour as it was built with this test, where the environment says so, else as cargo builds it for a newcomer.
fn tour_without_a_file(simulator: &str) -> Command {
    let mut command = match std::env::var_os("CUDA_MEM_EXAMPLES") {
        Some(folder) => {
            let mut tour = Command::new(Path::new(&folder).join("tour"));
            // It would have the tool built that draws its page.
            tour.env_remove("CARGO");
            tour
        }
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--package", "cuda-mem-ipc", "--example", "tour", "--"]);
            cargo
        }
    };
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    // No library of that name: the simulated driver in the program itself is what runs.
    command.env("CUDA_MEM_DRIVER", "/nonexistent/libcuda.so").env("CUDA_MEM_SIM", simulator);
    command
}

fn run(file: &Path, simulator: &str) -> (Output, String, String) {
    finished(tour(file, simulator))
}

fn finished(mut tour: Command) -> (Output, String, String) {
    let output = tour.output().unwrap();
    assert_eq!(output.status.signal(), None, "ended by a signal");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (output, out, err)
}

/// The README's first command, as it stands there.
#[test]
fn without_a_file_it_writes_one_and_comes_to_its_end() {
    let (output, out, err) = finished(tour_without_a_file(""));
    assert!(output.status.success(), "{err}");
    assert!(out.contains(&format!("verified  {WINDOW} bytes, each four times")), "{out}");
    assert!(out.contains("\nranks     2 on 1 device") && out.contains("\nsnapshot  "), "{out}");
}

#[test]
fn a_file_that_ends_just_behind_a_window_is_verified() {
    let file = Scratch::new("edge", WINDOW + 17);
    let (output, out, err) = run(&file.0, "");
    assert!(output.status.success(), "{err}");
    assert!(out.contains("pinned    in place"), "{out}");
    assert!(out.contains("pageable, staged") && out.contains("staged    "), "{out}");
    assert!(out.contains(&format!("verified  {} bytes", WINDOW + 17)), "{out}");
}

#[test]
fn a_training_run_is_replayed_beside_what_pytorch_reserved() {
    let file = Scratch::new("replay", 1000);
    let (output, out, err) = run(&file.0, "");
    assert!(output.status.success(), "{err}");
    assert!(out.contains("trace     gnn_sampling, 11823 events"), "{out}");
    // The simulated memory has no bytes, so the run is as it was.
    assert!(!out.contains("divided"), "{out}");
    let (_, reserved) = out.split_once("\nreserved  ").unwrap();
    let ours: f64 = reserved.split_whitespace().next().unwrap().parse().unwrap();
    // Expandable segments held 1.367 of it.
    assert!((1.0..1.367).contains(&ours), "{out}");
    assert!(out.contains("3.406 times by PyTorch's own"), "{out}");
    let (_, path) = out.split_once("\nsnapshot  ").unwrap();
    let pickle = fs::read(path.lines().next().unwrap()).unwrap();
    assert!(pickle.starts_with(b"\x80\x02") && pickle.ends_with(b"."));
    assert!(out.contains("cargo xtask report"), "{out}");
}

#[test]
fn other_processes_get_memory_and_give_it_back() {
    let file = Scratch::new("processes", 1000);
    let (output, out, err) = run(&file.0, "");
    assert!(output.status.success(), "{err}");
    assert!(out.contains("handed    16.0 MiB to process "), "{out}");
    assert!(out.contains("ranks     2 on 1 device, each has read the other's 16.0 MiB"), "{out}");
    assert!(out.contains("verified  16777216 bytes, in both processes"), "{out}");
}

#[test]
fn an_empty_file_is_no_error() {
    let file = Scratch::new("empty", 0);
    let (output, out, err) = run(&file.0, "");
    assert!(output.status.success(), "{err}");
    assert!(out.contains("verified  0 bytes"), "{out}");
}

#[test]
fn what_is_no_file_is_a_clear_error() {
    for (path, reason) in
        [("/nonexistent/file", "No such file"), ("/tmp", "a directory"), ("/dev/null", "not a regular file")]
    {
        let (output, _, err) = run(Path::new(path), "");
        assert_eq!(output.status.code(), Some(1), "{path}");
        assert!(err.starts_with("tour: ") && err.contains(path) && err.contains(reason), "{err}");
    }
}

#[test]
fn a_flipped_byte_is_found() {
    let file = Scratch::new("flipped", 1 << 20);
    // The third copy is the first that comes back.
    let (output, _, err) = run(&file.0, "flip=3:4096");
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("differs at byte 4096: 0x00 in the file, 0x01 came back"), "{err}");
}

#[test]
fn a_file_that_is_truncated_meanwhile_is_a_clear_error() {
    // All of it is a hole. The tour would be busy with it for long, so that this comes in time, also from a busy host.
    let file = Scratch::new("truncated", 40 * WINDOW);
    let mut child = tour(&file.0, "").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_line(&mut child, "file ");
    OpenOptions::new().write(true).open(&file.0).unwrap().set_len(1000).unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(1), None), "{err}");
    assert!(err.starts_with("tour: ") && !err.contains("panicked"), "{err}");
}

/// Reads the child's output up to a line that begins so. The pipe stays open behind it, and is large enough for the rest.
fn wait_for_line(child: &mut Child, start: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with(start)));
}
