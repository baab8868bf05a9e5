//! Linking of the program on Linux. Its line tables are compressed, to a third of their size; the
//! standard library reads them for backtraces, and debuggers do, as they are.
//!
//! The program starts faster because the dynamic linker has little to do: at a fixed address there
//! are no pointers to adjust, of which a position-independent program has 120,000 in 500 pages of
//! memory; and libzmq includes its C++ library. Heap, stacks, libraries and guests stay at random
//! addresses. The Python module and the tests are linked as usual, and so are static programs for
//! musl, which relocate themselves.

use std::env::var;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if !var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-Wl,--compress-debug-sections=zlib");
    if !var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu") {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if let Some(folder) = static_cpp_library() {
        println!("cargo::rustc-link-arg-bins=-L{}", folder.display());
    }
}

/// A folder with only the C++ library of the linker's compiler, for static linking, if the compiler
/// has one. The linker searches it before the system's folders, where it would find the dynamic
/// library. Zig has none: it always links its own C++ library statically.
fn static_cpp_library() -> Option<PathBuf> {
    const NAME: &str = "libstdc++.a";
    let linker = var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let found = Command::new(linker).arg(format!("-print-file-name={NAME}")).output().ok()?;
    let library = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    // A compiler without it prints the bare name.
    let library = library.canonicalize().ok().filter(|path| path.is_absolute() && path.is_file())?;
    let folder = Path::new(&var("OUT_DIR").ok()?).join("static");
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::copy(library, folder.join(NAME)).ok()?;
    Some(folder)
}
