//! S1: what a scope hands out does not leave it, where nobody would wait any more.

use cuda_mem_core::{Context, Scope, scope};

fn main() {}

fn escapes(context: &Context) {
    let mut kept: Option<&Scope<'_, '_>> = None;
    scope(context, |scope| {
        kept = Some(scope);
        Ok(())
    })
    .unwrap();
}
