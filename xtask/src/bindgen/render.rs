//! The two generated files: `types.rs`, which bindgen writes, and `functions.rs`, the table of what is bound.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use syn::{GenericArgument, Item, PathArguments, Type};

use super::headers::Headers;
use super::spec::Spec;

/// Types that no bound function names but its callers need: flag words are plain integers in the signatures.
const FLAG_TYPES: &str = "CUctx_flags|CUevent_flags|CUevent_record_flags|CUevent_wait_flags|CUstream_flags|\
    CUstreamWaitValue_flags|CUstreamWriteValue_flags|CUmemAttach_flags|CUipcMem_flags|CUdriverProcAddress_flags|\
    CUmemAllocationGranularity_flags|CUmemAllocationHandleType|CUgraphInstantiate_flags|CUuserObject_flags|\
    CUuserObjectRetain_flags|CUmemAccess_flags|CUstreamMemoryBarrier_flags|CUmemcpyFlags|CUmemcpySrcAccessOrder|\
    CUmemAllocationCompType|CUlimit|CUpointer_attribute|CUcomputemode|CUdevice_P2PAttribute|CUmemorytype|\
    CUmem_range_attribute";

/// Macros that are plain numbers.
const MACROS: &str = "CUDA_VERSION|CU_MEMHOSTALLOC_.*|CU_MEMHOSTREGISTER_.*|CU_IPC_HANDLE_SIZE|CU_MEM_CREATE_USAGE_.*|\
    CU_MEM_POOL_CREATE_USAGE_.*|CU_DEVICE_INVALID|CU_DEVICE_CPU";

/// Everything that the headers declare and the bound functions need.
pub(crate) fn types(spec: &Spec, include: &Path, libclang: &Path) -> Result<String> {
    // SAFETY: this tool has one thread at this point, so nobody reads the environment while it changes.
    unsafe { std::env::set_var("LIBCLANG_PATH", libclang) };
    let functions = spec.functions().map(|(name, version)| format!("PFN_{name}_v{version}"));
    let allow = functions.chain(["PFN_cuGetProcAddress_v12000".to_owned()]).collect::<Vec<_>>().join("|");
    let raw = bindgen::builder()
        .header_contents("driver.h", "#include <cuda.h>\n#include <cudaTypedefs.h>\n")
        .clang_arg(format!("-I{}", include.display()))
        // libclang from a wheel has no resource folder of its own; the compiler's headers serve.
        .clang_args(compiler_includes()?)
        .allowlist_type(allow)
        .allowlist_type(FLAG_TYPES)
        .allowlist_var(MACROS)
        .allowlist_recursively(true)
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .bitfield_enum("CU.*_flags_enum|CUmemAllocationHandleType_enum")
        .prepend_enum_name(false)
        .use_core()
        .generate_comments(false)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|error| anyhow::anyhow!("{error:?}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::None)
        .generate()
        .context("bindgen could not read the headers")?
        .to_string();

    let mut file = syn::parse_file(&raw).context("bindgen's output is not Rust")?;
    for item in &mut file.items {
        if let Item::Type(alias) = item
            && alias.ident.to_string().starts_with("PFN_")
            && let Some(inner) = option_argument(&alias.ty)
        {
            // A bound function is an address or an error, never null: the loader takes care of that once.
            *alias.ty = inner;
        }
    }
    let wheel = &spec.header.wheel;
    Ok(format!(
        "// Written by `cargo xtask bindgen` from {} {} (sha256 {}); do not edit.\n\n{}",
        wheel.package,
        wheel.version,
        wheel.sha256,
        prettyplease::unparse(&file)
    ))
}

/// `T` of `Option<T>`.
fn option_argument(ty: &Type) -> Option<Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|segment| segment.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(inner) => Some(inner.clone()),
        _ => None,
    })
}

/// The folders of the C compiler's own headers (`stddef.h` and its like).
fn compiler_includes() -> Result<Vec<String>> {
    let output = std::process::Command::new("cc")
        .arg("-print-file-name=include")
        .output()
        .context("cannot start cc, whose headers bindgen needs")?;
    let folder = String::from_utf8(output.stdout).context("cc named a folder that is not UTF-8")?;
    Ok(vec![format!("-isystem{}", folder.trim())])
}

/// The table: one entry for each function, with the symbol, the version to ask for and the manual's page.
pub(crate) fn functions(spec: &Spec, headers: &Headers) -> Result<String> {
    let mut text = String::from(
        "// Written by `cargo xtask bindgen` from xtask/bindings.toml; do not edit.\n\nfunctions! {\n",
    );
    for group in &spec.group {
        writeln!(text, "    // {}", group.title)?;
        for (name, version) in &group.functions {
            let abi = headers.abi(name, *version)?;
            let per_thread =
                abi.per_thread.map_or_else(|| "None".to_owned(), |version| format!("Some({version})"));
            writeln!(
                text,
                "    {name}: PFN_{name}_v{version}, {version}, {per_thread}, c\"{name}\", c\"{}\", \"{}\";",
                abi.export, group.page
            )?;
        }
    }
    text.push_str("}\n");
    // Checked here, so that a mistake in this file fails the generator and not the next build.
    if let Err(error) = text.parse::<proc_macro2::TokenStream>() {
        anyhow::bail!("the function table is not Rust: {error}");
    }
    Ok(text)
}
