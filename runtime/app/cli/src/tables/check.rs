//! `vcr tables check`.

use std::io::{self, Write as _};

use serde_json::{Value, json};
use vcr_core::latency::StepShape;
use vcr_latency::tables::{Priced, Source, Tables, TablesError};

use crate::tables::args::CheckArgs;
use crate::tables::json::{StepLine, priced_json};
use crate::tables::list::numbers;
use crate::terminal::style::{BOLD, DIM, write_table};

use crate::tables::print_json;

/// Typical steps: name, prompts, their tokens, decodes and their context.
const STEPS: &[(&str, u64, u64, u64, u64)] = &[
    ("1 decode at 2048", 0, 0, 1, 2048),
    ("16 decodes at 2048", 0, 0, 16, 2048),
    ("64 decodes at 2048", 0, 0, 64, 2048),
    ("256 decodes at 2048", 0, 0, 256, 2048),
    ("64 decodes at 32768", 0, 0, 64, 32768),
    ("a prompt of 2048", 1, 2048, 0, 0),
    ("4 prompts of 2048", 4, 2048, 0, 0),
    ("a prompt of 2048, 64 decodes at 2048", 1, 2048, 64, 2048),
];

/// Index of the step whose operators are listed.
const LISTED: usize = 7;

pub(super) fn check(args: &CheckArgs) -> Result<io::Result<()>, TablesError> {
    let tables = Tables::new(&args.model.input())?;
    let shape = |&(_, prompts, tokens, decodes, context): &(&str, u64, u64, u64, u64)| -> StepShape {
        StepLine::new(prompts, prompts * tokens, decodes, decodes * context).into()
    };
    let steps: Vec<(&str, Priced)> = STEPS.iter().map(|step| (step.0, tables.price_step(&shape(step)))).collect();
    let operators = tables.operators(&shape(&STEPS[LISTED]));
    let resolved = tables.resolved();
    if args.json {
        let named = |(name, priced): (&str, &Priced)| {
            let mut line = priced_json(priced);
            line.insert("name".to_owned(), json!(name));
            Value::Object(line)
        };
        let steps: Vec<Value> = steps.iter().map(|(name, priced)| named((name, priced))).collect();
        let operators: Vec<Value> = operators.iter().map(|(name, priced)| named((name, priced))).collect();
        return Ok(print_json(&json!({
            "system": args.model.stack.system,
            "backend": args.model.stack.backend,
            "version": resolved.version,
            "model": args.model.model,
            "gemm_dtype": resolved.gemm_dtype,
            "moe_dtype": resolved.moe_dtype,
            "kv_cache_dtype": resolved.kv_cache_dtype,
            "attention_dtype": resolved.attention_dtype,
            "computed_as": resolved.computed_as,
            "peak_tflops": resolved.peak_flops / 1e12,
            "steps": steps,
            "operators_of": STEPS[LISTED].0,
            "operators": operators,
        })));
    }
    let print = || {
        let mut out = anstream::stdout();
        let (model, stack) = (&args.model.model, &args.model.stack);
        writeln!(out, "{BOLD}{model}{BOLD:#} on {}, {} {}", stack.system, stack.backend, resolved.version)?;
        let moe = resolved.moe_dtype.map(|dtype| format!(", experts {dtype}")).unwrap_or_default();
        let (gemm, kv_cache) = (resolved.gemm_dtype, resolved.kv_cache_dtype);
        writeln!(out, "matrices {gemm}{moe}, KV cache {kv_cache}, prefills attend in {}", resolved.attention_dtype)?;
        let (computed_as, tflops) = (resolved.computed_as, resolved.peak_flops / 1e12);
        writeln!(out, "without rows, matrices are multiplied as {computed_as}, at {tflops:.0} TFLOP/s\n")?;
        let missing: Vec<&str> = operators
            .iter()
            .filter(|(name, priced)| priced.of(Source::Formula) == priced.ns() && !has_no_table(name))
            .map(|(name, _)| name.as_str())
            .collect();
        if !missing.is_empty() {
            writeln!(out, "no rows for {}: priced by a formula\n", missing.join(", "))?;
        }
        write_priced(&mut out, "step", steps.iter().map(|(name, priced)| (*name, priced)))?;
        writeln!(out, "\nof `{}`", STEPS[LISTED].0)?;
        write_priced(&mut out, "operator", operators.iter().map(|(name, priced)| (name.as_str(), priced)))?;
        writeln!(out, "\n{DIM}embedding, norms and activations have no tables: memory traffic by formula{DIM:#}")
    };
    Ok(print())
}

/// Whether no table has the operator, so that its cost is memory traffic only.
fn has_no_table(name: &str) -> bool {
    name == "embedding" || name == "norms" || name.ends_with("activation")
}

fn write_priced<'a>(
    out: &mut dyn io::Write,
    what: &str,
    rows: impl Iterator<Item = (&'a str, &'a Priced)>,
) -> io::Result<()> {
    let mut header = vec![what, "ms"];
    header.extend(Source::ALL.map(Source::name));
    let rows = rows.map(|(name, priced)| {
        let mut row = vec![name.to_owned(), format!("{:.3}", priced.ns() / 1e6)];
        row.extend(priced.shares().map(|share| format!("{:.1} %", share * 100.0)));
        row
    });
    write_table(out, &numbers(&header, rows.collect()))
}
