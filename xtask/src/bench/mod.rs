//! `cargo xtask bench`: ours and the peers in one run, in rounds that take turns, with what the figures were measured on.

mod alloc;
mod figures;
mod goal;
mod ipc;
mod peers;
mod pinned;
mod plot;
mod program;
mod recycle;
mod report;
mod rmm;
mod rounds;
mod staging;
mod suite;
mod symmetric;
mod system;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::gpu_test::{Backend, Builder, Home, Machine, Programs};
use crate::workspace::Workspace;
pub(crate) use rmm::build as build_rmm;
use suite::{Scale, Suite};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// Device memory: an allocation and a free in many patterns, beside PyTorch, RMM and the driver's pool.
    Alloc,
    /// Pinned memory: time until it is ready, cached pairs, a mix of sizes, a pool that is freed and allocated again.
    Pinned,
    /// Pageable memory to the device and back: rates over sizes, with a plot.
    Staging,
    /// Buffers handed to another process, beside a bare wake-up, PyTorch's multiprocessing and cuda.core.
    Ipc,
    /// Symmetric memory of two ranks, beside PyTorch's over CUDA, NCCL and NVSHMEM.
    Symmetric,
}

impl Which {
    /// The benchmark executable that answers for ours, and its crate; in a bundle it lies under its name.
    fn ours(self) -> (&'static str, &'static str) {
        match self {
            Self::Alloc | Self::Pinned | Self::Staging => ("cuda-mem-pool", "participant"),
            Self::Ipc => ("cuda-mem-ipc", "hand_over"),
            Self::Symmetric => ("cuda-mem-ipc", "rendezvous"),
        }
    }
}

/// Measure ours beside the peers.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    which: Which,
    /// Write the figures as JSON too.
    #[arg(long)]
    json: bool,
    /// Where JSON, plots and logs go [default: target/bench, or bench-report beside a bundle].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Tiny sizes and two rounds: shows that everything runs and that the bytes are right; its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Whose driver ours runs on; the peers need a GPU.
    #[arg(long, value_enum, default_value = "auto")]
    backend: Backend,
    /// Only cases whose name holds this text, or matches it with `*` for anything.
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// GiB that are made ready at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    gib: u64,
    /// Rounds of each case, in place of its own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

/// Runs a benchmark; whether everything of ours ran. No figure decides that.
pub(crate) fn run(home: Home<'_>, arguments: &Arguments) -> Result<bool> {
    let (base, peers, default_out) = match home {
        Home::Workspace(root) => (root, root.join("ci/peers"), "target/bench"),
        Home::Bundle(folder) => (folder, folder.join("peers"), "bench-report"),
    };
    let out = arguments.out.clone().unwrap_or_else(|| base.join(default_out));
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;

    let (probe, ours) = programs(home, arguments.which, arguments.quick)?;
    let machine = Machine::probe(&probe, &out)?;
    let on_gpu = match (arguments.backend, &machine.gpu) {
        (Backend::Sim, _) | (Backend::Auto, Err(_)) => false,
        (Backend::Auto | Backend::Gpu, Ok(_)) => true,
        (Backend::Gpu, Err(reason)) => bail!("no GPU: {reason}"),
    };
    println!("machine: {}", machine.describe());
    println!("backend: {}", if on_gpu { "GPU" } else { "simulator: no figure means anything" });

    let available = system::available_memory().unwrap_or(0);
    let scale = Scale { quick: arguments.quick, gib: arguments.gib, available };
    let mut suite = match arguments.which {
        Which::Alloc => alloc::suite(scale),
        Which::Pinned => pinned::suite(scale)?,
        Which::Staging => staging::suite(scale),
        Which::Ipc => ipc::suite(scale),
        Which::Symmetric => symmetric::suite(scale),
    };
    narrow(&mut suite, arguments)?;
    let system = system::State::read(machine);
    recycle::touch_and_free(suite.memory())?;

    let rmm = match arguments.which == Which::Alloc && on_gpu {
        true => rmm_program(home, &peers).map_err(|error| format!("{error:#}")),
        false => Err("not asked for".to_owned()),
    };
    let launcher = peers::Launcher::new(&ours, &peers, on_gpu, rmm)?;
    let run = rounds::run(&suite, &launcher, &out)?;
    let verdicts = match on_gpu && !arguments.quick {
        true => (suite.goals)(&run.figures, scale),
        false => Vec::new(),
    };
    let report = report::Report {
        suite: &suite,
        system: &system,
        on_gpu,
        quick: arguments.quick,
        run: &run,
        verdicts: &verdicts,
    };
    let mut files = Vec::new();
    if arguments.json {
        files.push(report.write_json(&out)?);
    }
    if let Some(plot) = suite.plot {
        let path = out.join(format!("{}.svg", suite.name));
        fs::write(&path, plot(&run.figures)).with_context(|| format!("cannot write {}", path.display()))?;
        files.push(path);
    }
    report.show(&files);
    Ok(!run.has_failed())
}

/// The probe and the executable of ours: carried by the bundle, or built.
fn programs(home: Home<'_>, which: Which, quick: bool) -> Result<(PathBuf, PathBuf)> {
    let (package, name) = which.ours();
    match home {
        Home::Bundle(folder) => {
            let programs = Programs::carried(folder)?;
            let ours = programs.extra(name)?.to_path_buf();
            Ok((programs.probe, ours))
        }
        Home::Workspace(root) => {
            let workspace = Workspace::read(root)?;
            // Quick figures mean nothing: nobody waits for an optimised build of them.
            let builder = Builder { workspace: &workspace, profile: if quick { "dev" } else { "release" } };
            let ours = builder.extra("bench", package, name)?;
            Ok((builder.extra("example", "cuda-mem-sys", "probe")?, ours))
        }
    }
}

/// The peer over RMM: carried by the bundle, or built.
fn rmm_program(home: Home<'_>, peers: &Path) -> Result<PathBuf> {
    let program = match home {
        Home::Bundle(_) => peers.join("rmm").join(rmm::PROGRAM),
        Home::Workspace(root) => {
            rmm::build(peers, &Workspace::read(root)?.target_directory)?.join(rmm::PROGRAM)
        }
    };
    ensure!(program.is_file(), "the bundle was made without --with-rmm");
    Ok(program)
}

/// Leaves what the command line asks for.
fn narrow(suite: &mut Suite, arguments: &Arguments) -> Result<()> {
    if let Some(pattern) = &arguments.case {
        // Names have commas in them.
        let all = suite.cases.iter().map(|case| format!("`{}`", case.name)).collect::<Vec<_>>().join(", ");
        suite.cases.retain(|case| crate::gpu_test::matches(pattern, &case.name));
        if suite.cases.is_empty() {
            bail!("no case matches `{pattern}`; there are: {all}");
        }
    }
    if let Some(rounds) = arguments.rounds {
        suite.cases.iter_mut().for_each(|case| case.rounds = rounds);
    }
    Ok(())
}
