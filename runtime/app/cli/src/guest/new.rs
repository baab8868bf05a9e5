//! `vcr guest new`.

use std::io::{self, Write};
use std::path::PathBuf;

use vcr_guest_tools::template::{NewGuest, create};

use crate::exit::{Exit, print_error, printed};
use crate::guest::args::NewArgs;

pub(crate) fn new_command(args: &NewArgs) -> Exit {
    let dir = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let guest = NewGuest { name: &args.name, world: &args.world, language: args.lang };
    match create(&guest, &dir) {
        Ok(created) => {
            let shown = dir.display();
            let mut out = io::stdout().lock();
            let written = writeln!(
                out,
                "{shown}: a {} in {}, {} files\n\n  vcr guest build {shown}\n  vcr guest check {shown}/dist/{}.wasm --config {shown}/config.json",
                args.world,
                args.lang.name(),
                created.files,
                args.name,
            );
            printed(written, Exit::Passed)
        }
        Err(error) => {
            print_error(&error, error.hint().as_deref());
            Exit::BadInput
        }
    }
}
