//! Modules and their functions.

use std::sync::Arc;

use cuda_mem_sys::CUresult;

use super::context::Context;
use super::op::Outcome;
use super::{HandleKind, Runtime, new_handle};
use crate::call::Call;
use crate::site::Site;

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    /// The names of its kernels.
    entries: Vec<String>,
    pub(crate) made: Site,
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) module: usize,
    pub(crate) name: String,
    pub(crate) context: Arc<Context>,
}

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

impl Runtime {
    /// Loads the kernels that a PTX text names.
    pub(crate) fn load_module(&self, call: &Call<'_>, context: Arc<Context>, text: &str) -> Outcome<usize> {
        if !text.contains(".version") || !text.contains(".target") {
            return Err(CUresult::CUDA_ERROR_INVALID_PTX);
        }
        let name =
            |rest: &str| rest.trim_start().split(|c: char| !is_name(c)).next().unwrap_or_default().to_owned();
        let entries = text.split(".entry").skip(1).map(name).collect();
        let handle = new_handle(HandleKind::Module);
        self.lock().modules.insert(handle, Module { context, entries, made: call.site() });
        Ok(handle)
    }

    pub(crate) fn unload_module(&self, module: usize) -> Outcome<()> {
        let mut state = self.lock();
        state.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    /// The handle of a kernel: the same whenever it is asked for.
    pub(crate) fn function(&self, module: usize, name: &str) -> Outcome<usize> {
        let mut state = self.lock();
        let known = state.modules.get(&module).ok_or(INVALID_HANDLE)?;
        if !known.entries.iter().any(|entry| entry == name) {
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        let context = Arc::clone(&known.context);
        let is_it = |function: &Function| function.module == module && function.name == name;
        if let Some((&handle, _)) = state.functions.iter().find(|(_, function)| is_it(function)) {
            return Ok(handle);
        }
        let handle = new_handle(HandleKind::Function);
        state.functions.insert(handle, Function { module, name: name.to_owned(), context });
        Ok(handle)
    }

    pub(crate) fn has_module(&self, module: usize) -> Outcome<()> {
        self.lock().modules.get(&module).map(drop).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn function_of(&self, handle: usize) -> Outcome<Function> {
        self.lock().functions.get(&handle).cloned().ok_or(INVALID_HANDLE)
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}
