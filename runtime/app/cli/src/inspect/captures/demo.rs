//! `vcr inspect gen-demo`: generates a synthetic capture.

use std::io;

use vcr_trace::import::demo::{DemoOptions, write};
use vcr_trace::import::export::{Exporter, Target};

use super::args::DemoArgs;
use super::not_written;
use super::output::{self, Output};
use crate::exit::{Exit, printed};
use crate::terminal::text::counted;

pub(crate) fn gen_demo(args: &DemoArgs) -> Exit {
    let options = DemoOptions {
        requests: args.requests,
        seed: args.seed,
        requests_per_s: args.rate,
        block_size_tokens: args.block_size,
        speculative: args.speculative,
        tokens: args.tokens,
    };
    let opened = output::open(&args.output, args.force, []).and_then(|output| Ok((output.handle()?, output)));
    let (file, output) = match opened {
        Ok(opened) => opened,
        Err(error) => return not_written(&error),
    };
    let is_stdout = output.is_stdout();
    let mut exporter = Exporter::new(file, &args.output, Target::Capture);
    let written: io::Result<()> = write(&options, &mut |line| exporter.add(line));
    let written = written.and_then(|()| exporter.finish().map(drop)).map_err(|error| output.error(error));
    if let Err(error) = written.and_then(|()| output.commit()) {
        return not_written(&error);
    }
    let requests = counted(args.requests.get(), "request");
    printed(Output::print(is_stdout, &format!("  {}: {requests}", args.output.display())), Exit::Passed)
}
