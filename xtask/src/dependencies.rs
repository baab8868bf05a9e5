//! Contents of a binary: the SBOM by cargo-cyclonedx, the licences by cargo-about.

use std::fs;
use std::process::Command;

use crate::binary::read;
use crate::checkout::Checkout;
use crate::error::Error;
use crate::tool;

/// cargo-cyclonedx writes one next to the manifest of every crate: a name that no file of the
/// checkout has.
const DRAFT: &str = "vcr-dist-draft.cdx";

/// The SBOM of the binary, in CycloneDX's JSON. Folders of the checkout are named from its root.
pub(crate) fn sbom(checkout: &Checkout, target: &str) -> Result<Vec<u8>, Error> {
    let mut command = Command::new("cargo-cyclonedx");
    command.args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--features", "full"]);
    command.args(["--override-filename", DRAFT, "--target", target, "--manifest-path", "runtime/app/cli/Cargo.toml"]);
    // The time in it, where it would take the clock's.
    command.current_dir(&checkout.root).env("SOURCE_DATE_EPOCH", checkout.time.to_string());
    let made = tool::output(&mut command);
    let draft = format!("{DRAFT}.json");
    let sbom = made.and_then(|_| read(&checkout.root.join("runtime/app/cli").join(&draft)));
    // In any case. A missing folder needs no removal.
    for folder in &checkout.crates {
        let _ = fs::remove_file(folder.join(&draft));
    }
    let unexpected = |_| Error::Output { program: "cargo cyclonedx", expected: "text in UTF-8" };
    let text = String::from_utf8(sbom?).map_err(unexpected)?;
    Ok(text.replace(&format!("path+file://{}", checkout.root.display()), "path+file:///vcr").into_bytes())
}

/// The licences of all crates in the binary, as Markdown.
pub(crate) fn licences(checkout: &Checkout) -> Result<Vec<u8>, Error> {
    let mut command = Command::new("cargo-about");
    command.args(["about", "generate", "--locked", "--offline", "--fail", "--features", "full"]);
    command.args(["--manifest-path", "runtime/app/cli/Cargo.toml", "--config", "xtask/about.toml", "xtask/about.hbs"]);
    tool::output(command.current_dir(&checkout.root))
}
