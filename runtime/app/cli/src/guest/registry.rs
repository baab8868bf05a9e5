//! `vcr guest pull` and `vcr guest push`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use vcr_guest::{GuestModule, Limits};
use vcr_guest_tools::registry::{Found, OciReference, RegistryError, Store};

use crate::exit::{Exit, print_error, printed};
use crate::help::with_plain_exit_codes;

pub(crate) const PULL_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest pull oci://ghcr.io/someone/roofline:1.2     # prints the reference to put into scenarios
  vcr guest pull oci://localhost:5000/roofline@sha256:2c26...

Guests are kept under their digests in VCR_GUEST_STORE, or the user's cache folder; a scenario
that names a digest needs no network from then on. Credentials are those of `docker login`."
);

pub(crate) const PUSH_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest push guests/dist/roofline.wasm oci://ghcr.io/someone/roofline:1.2

Prints the reference with its digest, to put into scenarios. Registries other than those of this
machine are asked over HTTPS only. Credentials are those of `docker login`."
);

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Guest to pull: oci://registry/repository:tag, or @sha256:... instead of the tag.
    #[arg(value_name = "REFERENCE")]
    reference: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// The component.
    #[arg(value_name = "FILE", value_parser = crate::values::InputPath)]
    file: PathBuf,

    /// Place to push to: oci://registry/repository:tag.
    #[arg(value_name = "REFERENCE")]
    reference: String,
}

pub(crate) fn pull(args: &PullArgs) -> Exit {
    let pulled = args.reference.parse::<OciReference>().and_then(|reference| Store::from_env()?.pull(&reference));
    match pulled {
        Ok(found) => printed(print_found(args, &found), Exit::Passed),
        Err(error) => refused(&error),
    }
}

fn print_found(args: &PullArgs, found: &Found) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let row = serde_json::json!({
            "name": found.name,
            "reference": found.pinned.to_string(),
            "path": found.path.display().to_string(),
        });
        return writeln!(out, "{row:#}");
    }
    writeln!(out, "{}", found.pinned)
}

pub(crate) fn push(args: &PushArgs) -> Exit {
    // A registry must not get guests that the simulator would refuse.
    if let Err(error) =
        GuestModule::load(&args.file, Limits { wasi: vcr_guest::WasiGrants::all(), ..Limits::default() })
    {
        print_error(&error, error.hint().as_deref());
        return Exit::BadInput;
    }
    let pushed =
        args.reference.parse::<OciReference>().and_then(|reference| Store::from_env()?.push(&args.file, &reference));
    match pushed {
        Ok(pinned) => printed(writeln!(std::io::stdout(), "{pinned}"), Exit::Passed),
        Err(error) => refused(&error),
    }
}

fn refused(error: &RegistryError) -> Exit {
    print_error(error, error.hint().as_deref());
    Exit::BadInput
}
