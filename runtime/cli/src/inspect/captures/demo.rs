//! `vcr inspect gen-demo`: a capture that is made up.

use std::io::{self, Write};

use vcr_import::demo::{DemoOptions, write};
use vcr_import::export::{Exporter, Target};

use super::args::DemoArgs;
use super::not_written;
use crate::exit::{Exit, printed};
use crate::inspect::text::count;

pub(crate) fn gen_demo(args: &DemoArgs) -> Exit {
    let options = DemoOptions {
        requests: args.requests,
        seed: args.seed,
        requests_per_s: args.rate,
        block_size_tokens: args.block_size,
        speculative: args.speculative,
        tokens: args.tokens,
    };
    let mut exporter = Exporter::new(&args.output, Target::Capture);
    let written: io::Result<()> = write(&options, &mut |line| exporter.add(line));
    let has_begun = exporter.has_begun();
    if let Err(error) = written.and_then(|()| exporter.finish().map(drop)) {
        return not_written(&args.output, &error, has_begun);
    }
    let requests = count(args.requests.get(), "request");
    printed(writeln!(anstream::stdout(), "  {}: {requests}", args.output.display()), Exit::Passed)
}
