//! Releases made from an existing binary, and their contents.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The files of an archive by their paths: modes and bytes.
type Files = BTreeMap<String, (u32, Vec<u8>)>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary with all features; none, with a message, if something is missing.
fn binary() -> Option<PathBuf> {
    if Command::new("cargo-cyclonedx").arg("--version").output().is_err() {
        vcr_skips::skip("there is no cargo-cyclonedx; install it with `cargo install cargo-cyclonedx --locked`");
        return None;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let hint = "build vcr and its guests: `cargo run --release --features full -- guest build --bootstrap`";
    let _guest = vcr_skips::existing(root().join("guests/dist/roofline.wasm"), hint)?;
    vcr_skips::existing(target.join("release/vcr"), hint)
}

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().expect("it starts")
}

/// Makes a release of a binary; the licences are a text of the test's.
fn dist(binary: &Path) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let licences = folder.path().join("licences");
    fs::write(&licences, "all licences\n").expect("it is writable");
    let out = folder.path().join("out");
    let paths = [binary, &licences, &out].map(|path| path.to_str().expect("a path in UTF-8"));
    let output = xtask(&["dist", "--binary", paths[0], "--licences", paths[1], "--out", paths[2]]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Names and bytes of the made files.
fn made(folder: &TempDir) -> BTreeMap<String, Vec<u8>> {
    let listed = fs::read_dir(folder.path().join("out")).expect("it was made");
    let files = listed.map(|entry| entry.expect("it can be listed"));
    files
        .map(|file| (file.file_name().into_string().expect("a text"), fs::read(file.path()).expect("it is readable")))
        .collect()
}

fn ending<'a>(made: &'a BTreeMap<String, Vec<u8>>, end: &str) -> &'a [u8] {
    let found = made.iter().find(|(name, _)| name.ends_with(end));
    found.map(|(_, bytes)| &bytes[..]).unwrap_or_else(|| panic!("no {end} in {:?}", made.keys()))
}

fn unpacked(archive: &[u8], into: &Path) -> Files {
    tar::Archive::new(GzDecoder::new(archive)).unpack(into).expect("it can be unpacked");
    let mut read = tar::Archive::new(GzDecoder::new(archive));
    let mut files = Files::new();
    for entry in read.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let (_, below) = path.split_once('/').expect("all is in one folder");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("it is readable");
        files.insert(below.to_owned(), (entry.header().mode().expect("a mode"), bytes));
    }
    files
}

#[test]
fn a_release_has_everything_and_the_same_bytes_each_time() {
    let Some(binary) = binary() else { return };
    let folder = dist(&binary);
    let made = made(&folder);
    assert_eq!(made.len(), 5, "{:?}", made.keys());
    let again = dist(&binary);
    assert!(made == self::made(&again), "the same inputs made other bytes");

    let files = unpacked(ending(&made, ".tar.gz"), folder.path());
    let names: Vec<&String> = files.keys().collect();
    for wanted in [
        "LICENSE",
        "LICENSES.md",
        "completions/bash/vcr",
        "completions/elvish/vcr.elv",
        "completions/fish/vcr.fish",
        "completions/powershell/_vcr.ps1",
        "completions/zsh/_vcr",
        "guests/dist/roofline.wasm",
        "man/man1/vcr-inspect-steps.1",
        "man/man1/vcr.1",
        "scenarios/pd_burst.rhai",
        "scenarios/traces/chat.jsonl",
        "vcr.cdx.json",
    ] {
        assert!(
            files.get(wanted).is_some_and(|(mode, bytes)| *mode == 0o644 && !bytes.is_empty()),
            "{wanted}: {names:?}"
        );
    }
    assert_eq!(files["vcr"].0, 0o755);
    assert_eq!(files["LICENSES.md"].1, b"all licences\n");
    says_where_it_comes_from(&made);
    is_one_program_with_its_line_tables(&made, &files);
    runs_the_main_job(folder.path());
}

/// Checksums of all, and a statement about each.
fn says_where_it_comes_from(made: &BTreeMap<String, Vec<u8>>) {
    let sums = String::from_utf8(made["SHA256SUMS"].clone()).expect("text");
    let sums: BTreeMap<&str, &str> =
        sums.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
    assert_eq!(sums.len(), 4, "{sums:?}");
    for (name, sum) in &sums {
        assert_eq!(hex::encode(Sha256::digest(&made[*name])), *sum, "{name}");
    }
    let provenance: Value = serde_json::from_slice(ending(made, ".provenance.json")).expect("JSON");
    let subjects = provenance["subject"].as_array().expect("subjects");
    assert_eq!(subjects.len(), 3);
    for subject in subjects {
        assert_eq!(subject["digest"]["sha256"], sums[subject["name"].as_str().expect("a name")]);
    }
    let inputs = &provenance["predicate"]["buildDefinition"]["resolvedDependencies"];
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output().expect("there is git");
    assert_eq!(inputs[0]["digest"]["gitCommit"], String::from_utf8_lossy(&head.stdout).trim());
    let lock = fs::read(root().join("Cargo.lock")).expect("there is one");
    assert_eq!(inputs[1]["digest"]["sha256"], hex::encode(Sha256::digest(lock)));

    let sbom: Value = serde_json::from_slice(ending(made, ".cdx.json")).expect("JSON");
    let components: Vec<&str> =
        sbom["components"].as_array().expect("components").iter().filter_map(|it| it["name"].as_str()).collect();
    for name in ["vcr-core", "wasmtime", "zmq"] {
        assert!(components.contains(&name), "{name}: {components:?}");
    }
    let folder = root().canonicalize().expect("it is there");
    let place = folder.to_str().expect("a path in UTF-8").as_bytes();
    for (name, bytes) in made.iter().filter(|(name, _)| name.ends_with(".json")) {
        assert!(!bytes.windows(place.len()).any(|part| part == place), "{name} names a folder of this machine");
    }
}

fn is_one_program_with_its_line_tables(made: &BTreeMap<String, Vec<u8>>, files: &Files) {
    let mut lines = Vec::new();
    GzDecoder::new(ending(made, ".debug.gz")).read_to_end(&mut lines).expect("it is compressed");
    assert!(lines.starts_with(b"\x7fELF"));
    let has = |bytes: &[u8], name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    let program = &files["vcr"].1;
    // Names of sections stand between zeros; texts of the program do not.
    assert!(has(program, "\0.gnu_debuglink\0") && !has(program, "\0.symtab\0"));
    assert!(has(&lines, "\0.symtab\0") && !has(program, "\0.debug_line\0"));
    // A profile may leave line tables out.
    let built = fs::read(binary().expect("it was packaged")).expect("it is readable");
    assert_eq!(has(&lines, "\0.debug_line\0"), has(&built, "\0.debug_line\0"));
    let name = made.keys().find(|name| name.ends_with(".debug.gz")).expect("line tables");
    assert!(has(program, name.trim_end_matches(".gz")), "the program does not name {name}");
}

fn runs_the_main_job(folder: &Path) {
    let mut listed = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let unpacked = listed.find(|path| path.join("vcr").is_file()).expect("it was unpacked");
    let mut command = Command::new(unpacked.join("vcr"));
    let output = command.args(["run", "scenarios/pd_burst.rhai"]).current_dir(&unpacked).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("7 of 7 assertions passed"));
}

#[test]
fn what_cannot_be_packaged_is_named() {
    let said = refused(&["--binary", "no/such/file"]);
    assert!(said.contains("error: cannot read `no/such/file`"), "{said}");
    let said = refused(&["--binary", "/bin/echo"]);
    assert!(said.contains("invalid binary `/bin/echo`: expected version"), "{said}");
    let said = refused(&["--binary", "/bin/echo", "--runnable", "no/such/file"]);
    assert!(said.contains("error: cannot start `no/such/file`") && said.contains("hint: "), "{said}");
    let said = refused(&["--binary", file!()]);
    assert!(said.contains("expected an ELF file of 64 bits"), "{said}");
    let said = refused(&["--target", "x86_64-unknown-linux-musl.2.28"]);
    assert!(said.contains("expected a triple, for glibc with its version"), "{said}");
}

/// Its own program stands for one that was linked to this machine's glibc.
#[test]
fn a_binary_of_another_machine_or_a_newer_glibc_is_refused() {
    let this = env!("CARGO_BIN_EXE_xtask");
    let (here, other) = (std::env::consts::ARCH, if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" });
    let said = refused(&["--binary", this, "--target", &format!("{other}-unknown-linux-gnu.2.28")]);
    let expected = format!("invalid binary `{this}`: expected a program for {other}, got one for {here}");
    assert!(said.contains(&expected), "{said}");

    // The first glibc of the architecture is older than whatever the program was linked to.
    let said = refused(&["--binary", this, "--target", &format!("{here}-unknown-linux-gnu.2.17")]);
    let (_, symbol) = said.split_once("expected symbols of glibc 2.17 at most, got `").expect("it is refused");
    let (symbol, version) = symbol.split_once("` of GLIBC_2.").expect("the version follows");
    let program = fs::read(this).expect("it is readable");
    let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
    assert!(program.windows(name.len()).any(|part| part == name), "{symbol} is not a name in the program: {said}");
    let minor: u32 =
        version.split(|char: char| !char.is_ascii_digit()).next().unwrap_or_default().parse().expect(&said);
    assert!(minor > 17, "{said}");
    // None is newer than that: the next check is of the program's version.
    let said = refused(&["--binary", this, "--target", &format!("{here}-unknown-linux-gnu.2.{minor}")]);
    assert!(said.contains(" --version` failed"), "{said}");
}

/// Cargo's variable names the runner for programs of another target: here a stand-in, which runs
/// nothing.
#[test]
fn a_binary_is_run_by_what_cargo_knows_for_its_target() {
    let (this, here) = (env!("CARGO_BIN_EXE_xtask"), std::env::consts::ARCH);
    let variable = format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", here.to_uppercase());
    let target = format!("{here}-unknown-linux-gnu.99.0");
    let mut command = Command::new(this);
    command.args(["dist", "--binary", this, "--target", &target]).env(variable, "/bin/echo as told:");
    let output = command.output().expect("it starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains(&format!("got `as told: {this} --version`")), "{said}");
}

/// A folder with Cargo, rustc and git, and nothing else.
fn programs() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in ["cargo", "rustc", "git"] {
        let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
        symlink(found.expect("it is installed"), folder.path().join(program)).expect("it is new");
    }
    folder
}

#[test]
fn a_compiler_that_is_missing_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["dist", "--target", "aarch64-unknown-linux-gnu.2.28"]);
    let output = command.env("PATH", programs().path()).output().expect("it starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("error: cannot start `cargo-zigbuild`"), "{said}");
    assert!(said.contains("hint: install it with `pip install cargo-zigbuild`"), "{said}");
}

/// A stand-in records its calls, and builds nothing.
#[test]
fn other_targets_are_built_by_zig_with_what_crates_ask_for_by_name() {
    let programs = programs();
    let stand_in = programs.path().join("cargo-zigbuild");
    // From the system, since a shell passes on no variable with a hyphen in its name.
    let script = "#!/bin/sh\necho \"called: $*\"\n/usr/bin/tr '\\0' '\\n' </proc/$$/environ\nexit 1\n";
    fs::write(&stand_in, script).expect("it is writable");
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["dist", "--target", "aarch64-unknown-linux-gnu.2.28"]).stdin(Stdio::null());
    let output = command.env("PATH", programs.path()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stdout).expect("text");
    let root = root().canonicalize().expect("it is there");
    let root = root.display();
    for wanted in [
        "called: zigbuild --profile dist --locked --package vcr --features full --target aarch64-unknown-linux-gnu.2.28",
        &format!("PATH={root}/xtask/compilers:"),
        &format!(
            "BINDGEN_EXTRA_CLANG_ARGS_aarch64-unknown-linux-gnu=-nostdinc -isystem '{root}/xtask/compilers/include'"
        ),
        &format!("CXXFLAGS_aarch64_unknown_linux_gnu='-ffile-prefix-map={root}=/vcr'"),
    ] {
        assert!(said.lines().any(|line| line.starts_with(wanted)), "no {wanted}:\n{said}");
    }
    for name in ["g++", "include/stdbool.h", "include/stddef.h", "include/stdint.h"] {
        assert!(self::root().join("xtask/compilers").join(name).is_file(), "{name}");
    }
}

/// Standard error of `cargo xtask dist`, which ends with the exit code of bad input.
fn refused(arguments: &[&str]) -> String {
    let output = xtask(&[&["dist"], arguments].concat());
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}
