//! The image of the Dockerfile: built by buildah without a registry, and run as another user with a read-only root.
//! The image of the other architecture is built in the same way, and run if there is an emulator.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vcr_tests::{Authority, Folder, Said, free_port, root, scratch_dir, shipped_guest, skip, vcr};

/// The user ID in `tests/image/run.sh`.
const USER: u32 = 12345;

/// Maximum size of the image, in bytes.
const MAX_BYTES: u64 = 120_000_000;

/// Long enough even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Architectures by their names in images, and their numbers in ELF files.
const MACHINES: [(&str, u16); 2] = [("amd64", 62), ("arm64", 183)];

/// The architecture of this machine.
const OWN: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The other architecture, its emulator, and a program that every base image of it has.
const OTHER: (&str, &str, &str) = if cfg!(target_arch = "aarch64") {
    ("amd64", "qemu-x86_64-static", "lib64/ld-linux-x86-64.so.2")
} else {
    ("arm64", "qemu-aarch64-static", "lib/ld-linux-aarch64.so.1")
};

/// Environment variable with the path of a stripped `vcr` for the other architecture.
const OTHER_PROGRAM: &str = "VCR_OTHER_PROGRAM";

/// An image in a storage that only these tests use.
struct Image {
    architecture: &'static str,
    emulator: Option<PathBuf>,
    folder: Folder,
    name: String,
    container: String,
    root: PathBuf,
}

/// The path of a program, if it is installed.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Runs a command that must succeed, and returns its output.
#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[track_caller]
fn buildah(architecture: &str, args: &[&str]) -> String {
    done(Command::new("buildah").args(args).env("CONTAINERS_STORAGE_CONF", storage(architecture)))
}

/// Configuration of buildah's storage for an architecture, because the base images of all architectures have the
/// same name. It uses copies of files, because not every file system supports layers.
fn storage(architecture: &str) -> PathBuf {
    let place = scratch_dir().join("image").join(architecture);
    fs::create_dir_all(&place).expect("the target folder is writable");
    let path = place.join("storage.conf");
    let line = |name: &str| format!("{name} = \"{}\"\n", place.join(name).display());
    let text = format!("[storage]\ndriver = \"vfs\"\n{}{}", line("graphroot"), line("runroot"));
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        fs::write(&path, text).expect("the target folder is writable");
    }
    path
}

/// A build context with a binary and the shipped guests.
fn context(folder: &Folder, architecture: &str, program: &Path) -> PathBuf {
    let context = folder.path().join("context");
    let dist = context.join("prebuilt/home/guests/dist");
    fs::create_dir_all(&dist).expect("it is writable");
    let place = context.join("prebuilt").join(architecture);
    fs::create_dir(&place).expect("it is writable");
    fs::copy(program, place.join("vcr")).expect("it can be copied");
    for name in ["Dockerfile", ".dockerignore", "LICENSE", "scenarios"] {
        done(Command::new("cp").arg("-r").arg(root().join(name)).arg(context.join(name)));
    }
    for guest in fs::read_dir(root().join("guests/dist")).expect("guests are built") {
        let guest = guest.expect("it can be listed").path();
        fs::copy(&guest, dist.join(guest.file_name().expect("a file"))).expect("it can be copied");
    }
    context
}

/// Whether images can be built here; prints a message if not.
fn can_build() -> bool {
    if found("buildah").is_none() {
        skip("there is no buildah; install Debian's package of this name");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skip("images are built and run by root only");
        return false;
    }
    shipped_guest("roofline").is_some()
}

/// Makes the base image of an architecture.
fn base(architecture: &str) {
    let mut command = Command::new(root().join("tests/image/base.sh"));
    done(command.arg(architecture).env("CONTAINERS_STORAGE_CONF", storage(architecture)));
}

/// Builds the image of an architecture with a binary. If the build must run programs, `emulator` runs them.
fn image(architecture: &'static str, program: &Path, emulator: Option<PathBuf>) -> Image {
    let folder = Folder::new();
    let context = context(&folder, architecture, program);
    base(architecture);
    let name = format!("localhost/vcr-test:{}-{architecture}", std::process::id());
    let place = context.to_str().expect("a path is a text");
    let platform = format!("linux/{architecture}");
    // Only Docker's format supports HEALTHCHECK.
    let how = ["--isolation", "chroot", "--format", "docker", "--layers=false", "--quiet", "--platform", &platform];
    let build = [&["build"], &how[..], &["--build-arg", "SOURCE=prebuilt", "--tag", &name, place]].concat();
    buildah(architecture, &build);
    let container = buildah(architecture, &["from", "--platform", &platform, &name]);
    let mounted = buildah(architecture, &["mount", &container]);
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("it is writable");
    chown(&out, Some(USER), Some(USER)).expect("root may");
    // By default, only its owner can read a temporary folder.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    Image { architecture, emulator, folder, name, container, root: mounted.into() }
}

/// The architecture of an ELF file, by its name in images.
fn machine(path: &Path) -> Option<&'static str> {
    let bytes = fs::read(path).expect("it is readable");
    let number = bytes.strip_prefix(b"\x7fELF").and_then(|rest| rest.get(14..16))?;
    let number = u16::from_le_bytes([number[0], number[1]]);
    MACHINES.iter().find(|(_, machine)| *machine == number).map(|(name, _)| *name)
}

impl Image {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(root().join("tests/image/run.sh"));
        command.arg(&self.root).arg(self.out()).args(args);
        if let Some(emulator) = &self.emulator {
            command.env("VCR_EMULATOR", emulator);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::of(&mut self.command(args))
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// The image's architecture, and the start configuration of its containers.
    fn config(&self) -> Value {
        let text = buildah(self.architecture, &["inspect", "--type", "image", &self.name]);
        let all: Value = serde_json::from_str(&text).expect("JSON");
        all["Docker"].clone()
    }

    /// Whether the image's binary has the image's architecture.
    fn is_for_its_machine(&self) -> bool {
        machine(&self.root.join("usr/local/bin/vcr")) == Some(self.architecture)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for args in [&["rm", self.container.as_str()][..], &["rmi", "--force", &self.name], &["rmi", "--prune"]] {
            _ = Command::new("buildah").args(args).env("CONTAINERS_STORAGE_CONF", storage(self.architecture)).output();
        }
    }
}

/// A server, which is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn the_image_runs_as_another_user_with_a_read_only_root() {
    if !can_build() {
        return;
    }
    let stripped = Folder::new();
    let program = stripped.path().join("vcr");
    done(Command::new("strip").arg("-o").arg(&program).arg(vcr()));
    let image = image(OWN, &program, None);
    starts_as_documented(&image);
    runs_the_main_job(&image);
    writes_to_a_mounted_folder(&image);
    serves_and_is_healthy(&image);
    pulls_a_guest_over_tls(&image);
    let bytes = done(Command::new("du").args(["--summarize", "--bytes"]).arg(&image.root));
    let bytes: u64 = bytes.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
    // Only unoptimised builds are larger. CI has no such build, so a larger image fails there.
    if bytes >= MAX_BYTES {
        skip(&format!("the image has {bytes} bytes: expected less than {MAX_BYTES} of an optimised build"));
    }
}

/// The build runs no program of the image. If there is no binary for the architecture, a program of its base image
/// is used.
#[test]
fn the_image_of_the_other_architecture_is_built_without_an_emulator() {
    if !can_build() {
        return;
    }
    let (architecture, emulator, loader) = OTHER;
    base(architecture);
    let folder = Folder::new();
    let stand_in = folder.path().join("vcr");
    let given = std::env::var_os(OTHER_PROGRAM).map(PathBuf::from);
    if given.is_none() {
        let name = fs::read_to_string(root().join("Dockerfile")).expect("it is text");
        let name = name.lines().filter_map(|line| line.strip_prefix("FROM ")).next_back().expect("a last stage");
        let container = buildah(architecture, &["from", "--platform", &format!("linux/{architecture}"), name]);
        let mounted = PathBuf::from(buildah(architecture, &["mount", &container]));
        fs::copy(within(&mounted, Path::new(loader)), &stand_in).expect("the base image has it");
        buildah(architecture, &["rm", &container]);
    }
    let program = given.as_deref().unwrap_or(&stand_in);
    let built = image(architecture, program, found(emulator));
    starts_as_documented(&built);
    assert!(built.is_for_its_machine(), "{program:?} is for {:?}", machine(program));
    if given.is_none() {
        vcr_skips::skip_optional(&format!("{OTHER_PROGRAM} names no `vcr` for {architecture}"));
    } else if built.emulator.is_none() {
        skip(&format!("there is no {emulator}; install Debian's package qemu-user-static"));
    } else {
        runs_the_main_job(&built);
        writes_to_a_mounted_folder(&built);
        serves_and_is_healthy(&built);
    }
    drop(built);
    // A binary for this machine would not start in the image.
    let wrong = image(architecture, Path::new("/bin/true"), None);
    assert!(!wrong.is_for_its_machine());
}

/// A file in an image, with links resolved inside of the image.
fn within(image: &Path, path: &Path) -> PathBuf {
    let place = image.join(path);
    match fs::read_link(&place) {
        Ok(target) if target.is_absolute() => within(image, target.strip_prefix("/").expect("it is absolute")),
        Ok(target) => place.with_file_name("").join(target),
        Err(_) => place,
    }
}

fn starts_as_documented(image: &Image) {
    let config = image.config();
    assert_eq!(config["architecture"], image.architecture, "{config:#}");
    let config = &config["config"];
    assert_eq!(config["User"], "1000", "{config:#}");
    assert_eq!(config["Labels"]["org.opencontainers.image.licenses"], "Apache-2.0");
    assert!(image.root.join("opt/vcr/LICENSE").is_file());
    assert_eq!(config["Entrypoint"], serde_json::json!(["vcr"]));
    assert_eq!(config["Cmd"], serde_json::json!(["run", "scenarios/pd_burst.rhai"]));
    assert_eq!(config["Healthcheck"]["Test"], serde_json::json!(["CMD", "vcr", "health"]));
    assert_eq!(config["WorkingDir"], "/opt/vcr");
    let certificates = config["Env"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let certificates = certificates.filter_map(|it| it.strip_prefix("SSL_CERT_FILE=/")).next().expect("certificates");
    let text = fs::read_to_string(image.root.join(certificates)).expect("the file is there");
    assert!(text.contains("BEGIN CERTIFICATE"));
    for shell in ["bin/sh", "usr/bin/bash", "usr/bin/apt-get"] {
        assert!(!image.root.join(shell).exists(), "{shell}");
    }
}

fn runs_the_main_job(image: &Image) {
    let said = image.run(&["run", "scenarios/pd_burst.rhai"]).ended(0);
    let outside = Said::of(Command::new(vcr()).args(["run", "scenarios/pd_burst.rhai"]).current_dir(root()));
    assert_eq!(said.stdout, outside.ended(0).stdout);
}

fn writes_to_a_mounted_folder(image: &Image) {
    let _ = image.run(&["run", "scenarios/pd_burst.rhai", "--out", "/out/report", "--quiet"]).ended(0);
    let report = image.out().join("report/report.json");
    let report: Value = serde_json::from_slice(&fs::read(report).expect("it was written")).expect("JSON");
    assert_eq!(report["passed"], true);
    image.run(&["run", "scenarios/pd_burst.rhai", "--out", "elsewhere"]).failed(2, &["Read-only file system"]);
}

fn serves_and_is_healthy(image: &Image) {
    let port = free_port().to_string();
    let url = format!("http://127.0.0.1:{port}/ready");
    let _ = image.run(&["health", &url]).ended(1);
    let mut command = image.command(&["serve", "--port", &port]);
    let mut server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
    let deadline = Instant::now() + PATIENCE;
    while image.run(&["health", &url]).code != 0 {
        assert!(Instant::now() < deadline, "the server is not ready");
        thread::sleep(Duration::from_millis(50));
    }
    terminate(&server.0);
    assert_eq!(server.0.wait().expect("a process has a status").code(), Some(0));
}

/// Pulls from a registry whose certificate only `SSL_CERT_FILE` makes trusted.
fn pulls_a_guest_over_tls(image: &Image) {
    // An address of this machine, but none of the names that need no TLS.
    const HOST: &str = "127.0.0.2";
    let authority = Authority::new("an authority of tests");
    let own = authority.sign(HOST, "registry");
    let known = image.out().join("ca.pem");
    fs::write(&known, authority.pem()).expect("it is writable");
    fs::set_permissions(&known, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let mut command = Command::new("python3");
    command.arg(root().join("tests/image/registry.py")).args(own.paths()).arg(HOST);
    command.arg(root().join("guests/dist/roofline.wasm")).stdout(Stdio::piped());
    let mut registry = Server(command.spawn().expect("it starts"));
    let mut reference = String::new();
    let out = registry.0.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut reference).expect("it says where it serves");
    let pull = ["guest", "pull", reference.trim()];
    image.run(&pull).failed(2, &[&format!("cannot pull `{}`", reference.trim()), "certificate"]);
    let known = Said::of(image.command(&pull).env("SSL_CERT_FILE", "/out/ca.pem")).ended(0);
    assert!(known.stdout.contains(reference.trim()), "{}", known.stdout);
}

/// Sends SIGTERM, like a container runtime.
fn terminate(process: &Child) {
    done(Command::new("kill").arg(process.id().to_string()));
}
