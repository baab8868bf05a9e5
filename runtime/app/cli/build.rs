//! Linker options of the program on Linux.
//!
//! Line tables are compressed to a third of their size; backtraces and debuggers read them as they are. Two options
//! make the program start faster, because the dynamic linker has less to do: a fixed address avoids adjusting 120,000
//! pointers in 500 pages of memory, and libzmq includes its C++ library. Heap, stacks, libraries and guests still
//! have random addresses. The Python module, the tests and static musl programs, which relocate themselves, are
//! linked as usual.

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

/// A folder that contains only the compiler's static C++ library, if the compiler has one. The linker searches this
/// folder before the system's folders, which have the dynamic library. Zig has no such file, because it always links
/// its own C++ library statically.
fn static_cpp_library() -> Option<PathBuf> {
    const NAME: &str = "libstdc++.a";
    let linker = var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let found = Command::new(linker).arg(format!("-print-file-name={NAME}")).output().ok()?;
    let library = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    // A compiler without the library prints only its name.
    let library = library.canonicalize().ok().filter(|path| path.is_absolute() && path.is_file())?;
    let folder = Path::new(&var("OUT_DIR").ok()?).join("static");
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::copy(library, folder.join(NAME)).ok()?;
    Some(folder)
}
