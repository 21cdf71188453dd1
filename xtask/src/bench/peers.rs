//! How programs are started: ours with its driver, the peers with Python and what is compiled for them here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::suite::Kind;

/// Where PyTorch has its headers and libraries, as arguments of a C++ compiler, one a line.
const TORCH_FLAGS: &str = "
import glob, os, torch
from torch.utils.cpp_extension import include_paths, library_paths
packages = os.path.dirname(os.path.dirname(torch.__file__))
for folder in include_paths(): print('-I' + folder)
for folder in glob.glob(os.path.join(packages, 'nvidia', '*', 'include')): print('-isystem' + folder)
for folder in library_paths(): print('-L' + folder); print('-Wl,-rpath,' + folder)
print('-D_GLIBCXX_USE_CXX11_ABI=%d' % torch.compiled_with_cxx11_abi())
";

/// The runtime that PyTorch loads, in the same way.
const RUNTIME_FLAGS: &str = "
for runtime in glob.glob(os.path.join(packages, 'nvidia', '*', 'lib', 'libcudart.so.*')):
    print(runtime); print('-Wl,-rpath,' + os.path.dirname(runtime)); break
else: print('-lcudart')
";

/// What a C++ source becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A library that a script loads.
    Library,
    Program,
}

/// Starts what takes part.
#[derive(Debug)]
pub(crate) struct Launcher<'a> {
    ours: &'a Path,
    /// The folder of the peers' sources.
    peers: &'a Path,
    on_gpu: bool,
    /// The program over RMM, or why there is none.
    rmm: Result<PathBuf, String>,
    /// Holds what is compiled; removed at the end.
    scratch: TempDir,
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(
        ours: &'a Path,
        peers: &'a Path,
        on_gpu: bool,
        rmm: Result<PathBuf, String>,
    ) -> Result<Self> {
        Ok(Self { ours, peers, on_gpu, rmm, scratch: tempfile::tempdir()? })
    }

    /// The command of a program, or why it cannot run here.
    pub(crate) fn command(&self, kind: Kind) -> Result<Result<Command, String>> {
        if kind == Kind::Ours {
            let mut command = Command::new(self.ours);
            command.env("CUDA_MEM_BACKEND", if self.on_gpu { "gpu" } else { "sim" });
            return Ok(Ok(command));
        }
        if !self.on_gpu {
            return Ok(Err("needs a GPU".to_owned()));
        }
        match kind {
            Kind::Ours | Kind::Rmm => Ok(self.rmm.clone().map(Command::new)),
            Kind::Torch { source } => {
                let program = self.compile(&self.peers.join(source), Shape::Program);
                Ok(program.map(Command::new).map_err(|error| format!("{error:#}")))
            }
            Kind::Python { script, native, env } => {
                let mut command = Command::new("python3");
                command.arg("-B").arg(self.peers.join(script)).envs(env.iter().copied());
                if let Some(source) = native {
                    // Without it the script tells itself what it cannot measure.
                    match self.compile(&self.peers.join(source), Shape::Library) {
                        Ok(library) => {
                            command.arg(library);
                        }
                        Err(error) => println!("  {source} does not compile here: {error:#}"),
                    }
                }
                Ok(Ok(command))
            }
        }
    }

    /// Compiles a source over PyTorch's C++ interface.
    fn compile(&self, source: &Path, shape: Shape) -> Result<PathBuf> {
        let (script, extension, options, libraries) = match shape {
            Shape::Library => (
                TORCH_FLAGS.to_owned(),
                "so",
                &["-shared", "-fPIC"][..],
                &["-ltorch_cpu", "-ltorch_cuda"][..],
            ),
            Shape::Program => (TORCH_FLAGS.to_owned() + RUNTIME_FLAGS, "run", &[][..], &["-lc10_cuda"][..]),
        };
        let flags = Command::new("python3").args(["-c", &script]).output().context("cannot start python3")?;
        let complaint = |stderr: &[u8]| {
            let text = String::from_utf8_lossy(stderr).into_owned();
            text.trim().lines().next_back().unwrap_or("no reason given").to_owned()
        };
        ensure!(flags.status.success(), "PyTorch names no headers: {}", complaint(&flags.stderr));
        let flags = String::from_utf8(flags.stdout).context("folders that are no text")?;
        let result = self.scratch.path().join(source.file_name().context("a source without a name")?);
        let result = result.with_extension(extension);
        let compile = |compiler: &str| {
            let mut command = Command::new(compiler);
            command.args(["-O2", "-std=c++20", "-pthread", "-w"]).args(options).arg(source);
            command.arg("-o").arg(&result).args(flags.lines());
            for include in cuda_headers() {
                command.arg("-I").arg(include);
            }
            command.arg("-lc10").args(libraries).output()
        };
        let output = ["c++", "g++", "clang++"].into_iter().find_map(|compiler| compile(compiler).ok());
        let output = output.context("there is no C++ compiler")?;
        ensure!(output.status.success(), "{}", complaint(&output.stderr));
        Ok(result)
    }
}

/// Folders that may hold `cuda_runtime.h`: the toolkit's, as its compiler or the environment names it.
fn cuda_headers() -> impl Iterator<Item = PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let compilers = std::env::split_paths(&paths).map(|folder| folder.join("nvcc")).collect::<Vec<_>>();
    let beside = compilers
        .into_iter()
        .filter_map(|nvcc| nvcc.canonicalize().ok()?.parent()?.parent().map(Path::to_path_buf));
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let homes = named.chain(beside).chain([PathBuf::from("/usr/local/cuda")]);
    homes.map(|home| home.join("include")).filter(|folder| folder.join("cuda_runtime.h").is_file())
}
