//! `vcr tables price`.

use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use vcr_core::latency::StepShape;
use vcr_tables::Tables;

use crate::exit::{Exit, print_error, printed};
use crate::tables::args::PriceArgs;
use crate::tables::check::priced_json;
use crate::tables::refused;

/// The largest file of steps: some ten million of them.
const MAX_STEPS_BYTES: u64 = 1 << 30;

/// A step, as a line says it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StepLine {
    prefill_requests: u64,
    prefill_tokens: u64,
    prefill_context_tokens: u64,
    prefill_attention_pairs: Option<u64>,
    decode_requests: u64,
    decode_tokens: Option<u64>,
    decode_context_tokens: u64,
    sampled_requests: Option<u64>,
}

impl StepLine {
    pub(super) fn new(prompts: u64, prompt_tokens: u64, decodes: u64, context_tokens: u64) -> Self {
        Self {
            prefill_requests: prompts,
            prefill_tokens: prompt_tokens,
            decode_requests: decodes,
            decode_context_tokens: context_tokens,
            ..Self::default()
        }
    }
}

impl From<StepLine> for StepShape {
    fn from(line: StepLine) -> Self {
        let requests = line.prefill_requests.max(1);
        let (length, before) = (line.prefill_tokens / requests, line.prefill_context_tokens / requests);
        let pairs = requests.saturating_mul(length.saturating_mul(before) + length.saturating_mul(length + 1) / 2);
        Self {
            prefill_requests: line.prefill_requests,
            prefill_tokens: line.prefill_tokens,
            prefill_context_tokens: line.prefill_context_tokens,
            prefill_attention_pairs: line.prefill_attention_pairs.unwrap_or(pairs),
            decode_requests: line.decode_requests,
            decode_tokens: line.decode_tokens.unwrap_or(line.decode_requests),
            decode_context_tokens: line.decode_context_tokens,
            sampled_requests: line.sampled_requests.unwrap_or(line.prefill_requests + line.decode_requests),
            ..Self::default()
        }
    }
}

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
        let shape = step.into();
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
        return vcr_input::read_text(path, MAX_STEPS_BYTES).map_err(io::Error::other);
    }
    let mut text = String::new();
    io::stdin().lock().take(MAX_STEPS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
