//! `vcr guest wit`.

use std::io::{self, Write};

use vcr_guest::World;
use vcr_guest_tools::template::interface;

use crate::exit::{Exit, printed};
use crate::guest::args::WitArgs;

pub(crate) fn wit_command(args: &WitArgs) -> Exit {
    let files = |world: Option<World>| {
        // All worlds use `types` and `observe`.
        interface().filter(move |(name, _)| world.is_none_or(|world| [world.name(), "types", "observe"].contains(name)))
    };
    let mut out = io::stdout().lock();
    let write = |(name, text)| writeln!(out, "// wit/{name}.wit\n\n{text}");
    printed(files(args.world).try_for_each(write), Exit::Passed)
}
