//! `vcr mirror`: converts files to observations.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use vcr_base::output::{OutputError, Outputs};
use vcr_gate::{GateError, Input, Mirrored};

use super::args::MirrorArgs;
use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::terminal::text::{counted, printable};

pub(crate) fn mirror(args: &MirrorArgs) -> Exit {
    match write(args) {
        Ok(exit) => exit,
        Err(refusal) => refusal.print(),
    }
}

fn write(args: &MirrorArgs) -> Result<Exit, Refusal> {
    let inputs: Vec<Input> = args.inputs.iter().map(|text| Input::parse(text)).collect();
    if args.output == Path::new("-") {
        let mut out = BufWriter::new(io::stdout().lock());
        let result = all(args, &inputs, &mut out);
        return match result {
            Err(GateError::Write(error)) => Ok(printed(Err(error), Exit::Passed)),
            Err(error) => Err(error.into()),
            Ok(mirrored) => {
                account(&inputs, &mirrored, &mut |line| eprint_line(format_args!("{line}")));
                Ok(printed(out.flush(), Exit::Passed))
            }
        };
    }
    let mut outputs = Outputs::new(args.force);
    for input in &inputs {
        outputs.reads(&input.path)?;
    }
    let file = outputs.create(&args.output)?;
    let mut out = BufWriter::new(file.handle()?);
    let written = all(args, &inputs, &mut out).and_then(|mirrored| {
        out.flush().map_err(GateError::Write)?;
        Ok(mirrored)
    });
    let mirrored = match written {
        Err(GateError::Write(source)) => return Err(OutputError::Write { path: args.output.clone(), source }.into()),
        other => other?,
    };
    drop(out);
    file.commit()?;
    let mut lines = Vec::new();
    account(&inputs, &mirrored, &mut |line| lines.push(line));
    let text = lines.join("\n");
    Ok(printed(writeln!(anstream::stdout(), "{text}\n  wrote {}", args.output.display()), Exit::Passed))
}

fn all(args: &MirrorArgs, inputs: &[Input], out: &mut dyn Write) -> Result<Vec<Mirrored>, GateError> {
    let options = args.read.options(&args.set);
    let mut mirrored = Vec::new();
    for input in inputs {
        mirrored.push(vcr_gate::mirror::read(input, &options, &mut |observation, _| {
            observation.write(out).map_err(GateError::Write)?;
            Ok(ControlFlow::Continue(()))
        })?);
    }
    Ok(mirrored)
}

/// Prints a doubt about the times of an input, on standard error.
pub(super) fn warn_of_doubt(input: &Input, mirrored: &Mirrored) {
    if let Some(doubt) = &mirrored.doubt {
        eprint_line(format_args!("warning: {}: {doubt}", printable(&input.name())));
    }
}

fn account(inputs: &[Input], mirrored: &[Mirrored], line: &mut dyn FnMut(String)) {
    for (input, account) in inputs.iter().zip(mirrored) {
        line(format!("  {}: {}, {}", input.name(), counted(account.observations, "observation"), account.format));
        warn_of_doubt(input, account);
        for (what, number) in &account.notes {
            line(format!("  note: not kept: {number} {what}"));
        }
    }
}
