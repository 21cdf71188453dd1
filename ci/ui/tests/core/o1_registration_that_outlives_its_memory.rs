//! O1: memory that is registered in place lives longer than its registration.

use cuda_mem_core::{Context, scope};

fn main() {}

fn registered_and_gone(context: &Context) {
    scope(context, |scope| {
        let memory = vec![0u8; 4096];
        scope.register(&memory)?;
        drop(memory);
        Ok(())
    })
    .unwrap();
}
