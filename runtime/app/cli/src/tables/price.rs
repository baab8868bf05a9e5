//! `vcr tables price`.

use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::Path;

use serde_json::{Map, Value};
use vcr_core::latency::StepShape;
use vcr_latency::tables::Tables;

use crate::exit::{Exit, print_error, printed};
use crate::tables::args::PriceArgs;
use crate::tables::json::{StepLine, priced_json};
use crate::tables::refused;

/// Largest file of steps: about ten million steps.
const MAX_STEPS_BYTES: u64 = 1 << 30;

pub(super) fn price(args: &PriceArgs) -> Exit {
    let tables = match Tables::new(&args.model.input()) {
        Ok(tables) => tables,
        Err(error) => return refused(&error),
    };
    let text = match read(&args.steps) {
        Ok(text) => text,
        Err(error) => {
            print_error(&format!("cannot read `{}`: {error}", args.steps.display()), None);
            return Exit::BadInput;
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let step: StepLine = match serde_json::from_str(line) {
            Ok(step) => step,
            Err(error) => {
                let _ = out.flush();
                print_error(&format!("invalid `{}`: line {}: {error}", args.steps.display(), index + 1), None);
                return Exit::BadInput;
            }
        };
        let shape = StepShape::from(step);
        let mut priced = priced_json(&tables.price_step(&shape));
        if args.operators {
            let operators = tables.operators(&shape).into_iter();
            let operators: Map<String, Value> =
                operators.map(|(name, priced)| (name, Value::Object(priced_json(&priced)))).collect();
            priced.insert("operators".to_owned(), Value::Object(operators));
        }
        if let Err(error) = writeln!(out, "{}", Value::Object(priced)) {
            return printed(Err(error), Exit::Passed);
        }
    }
    printed(out.flush(), Exit::Passed)
}

fn read(path: &Path) -> io::Result<String> {
    if path != Path::new("-") {
        return vcr_base::input::read_text(path, MAX_STEPS_BYTES).map_err(io::Error::other);
    }
    let mut text = String::new();
    io::stdin().lock().take(MAX_STEPS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
