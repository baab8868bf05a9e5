//! Writes the files of a plan: the page, tables, and the next steps for each row.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use vcr_base::input::remote;
use vcr_base::output::{OutputFolder, Outputs};
use vcr_trace::import::table::{TableFormat, write as write_columns};

use crate::plan::answer::{Plan, Row};
use crate::plan::inputs::Inputs;
use crate::plan::load::{Cut, Facts, Load, absolute};
use crate::plan::script::Case;
use crate::plan::space::{Mode, has_drafts};
use crate::plan::{page, show};
use crate::refusal::Refusal;
use crate::terminal::text::counted;

/// The answer as JSON.
pub(crate) const JSON: &str = "plan.json";
const FILES: [&str; 3] = ["plan.html", "plan.csv", JSON];
const OF_ROW: [&str; 4] = ["scenario.rhai", "serve.sh", "bench.sh", "values.yaml"];
/// Largest number of row folders: the rows of the table, and a safe row added to it.
const MAX_ROWS: usize = 11;

/// The output folders, opened before the search.
pub(crate) struct Folders {
    outputs: Outputs,
    whole: OutputFolder,
    /// Row folders; those of an earlier plan exist.
    rows: Vec<Option<OutputFolder>>,
}

fn row_folder(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("row-{number}"))
}

impl Folders {
    pub(crate) fn open(mut outputs: Outputs, folder: &Path) -> Result<Self, Refusal> {
        let whole = outputs.folder(folder, &FILES)?;
        let mut rows = Vec::new();
        for number in 1..=MAX_ROWS {
            let path = row_folder(folder, number);
            rows.push(if path.is_dir() { Some(outputs.folder(&path, &OF_ROW)?) } else { None });
        }
        Ok(Self { outputs, whole, rows })
    }

    pub(crate) fn write(mut self, plan: &Plan, inputs: &Inputs) -> Result<(), Refusal> {
        let drafts = self.whole.drafts()?.to_owned();
        let place = |name: &str| drafts.join(name);
        draft(&place("plan.html"), |out| page::write(out, plan))?;
        draft(&place("plan.csv"), |out| write_columns(out, &show::columns(plan), TableFormat::Csv))?;
        let home = match remote::url(self.whole.path()) {
            Some(_) => self.whole.path().to_owned(),
            None => absolute(self.whole.path())?,
        };
        let kept = Plan { question: inputs.with_paths(|path| from(&home, path))?, ..plan.clone() };
        draft(&place(JSON), |out| write_json(out, &kept))?;
        for (index, earlier) in self.rows.into_iter().enumerate() {
            let row = plan.rows.get(index);
            let mut folder = match (earlier, row) {
                (Some(folder), Some(_)) => folder,
                (None, Some(_)) => self.outputs.folder(&row_folder(self.whole.path(), index + 1), &OF_ROW)?,
                // Empties the folder of a row that only the earlier plan had.
                (Some(folder), None) => {
                    folder.commit(&[])?;
                    continue;
                }
                (None, None) => continue,
            };
            let own = row_folder(&home, index + 1);
            let files = row.map(|row| row_files(row, plan, inputs, &own)).transpose()?.unwrap_or_default();
            let drafts = folder.drafts()?.to_owned();
            for (name, text) in &files {
                draft(&drafts.join(name), |out| out.write_all(text.as_bytes()))?;
            }
            let files: Vec<(&str, PathBuf)> = files.iter().map(|(name, _)| (*name, drafts.join(name))).collect();
            folder.commit(&files)?;
        }
        let files: Vec<(&str, PathBuf)> = FILES.iter().map(|name| (*name, drafts.join(name))).collect();
        Ok(self.whole.commit(&files)?)
    }
}

/// The path relative to a folder, so that both can be moved; unchanged if they have no common folder.
fn from(folder: &Path, file: &Path) -> PathBuf {
    let shared = folder.components().zip(file.components()).take_while(|(one, other)| one == other).count();
    // The root directory does not count as a common folder.
    if shared < 2 {
        return file.to_owned();
    }
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(file.components().skip(shared)).collect()
}

/// The files of a row's folder, with the next steps.
fn row_files(row: &Row, plan: &Plan, inputs: &Inputs, folder: &Path) -> Result<Vec<(&'static str, String)>, Refusal> {
    let moved = inputs.with_paths(|path| from(folder, path))?;
    let mut text = script(row, &moved)?;
    let read: Vec<String> = moved.files().iter().map(|path| format!("`{}`", path.display())).collect();
    if !read.is_empty() {
        text = text.replacen("\n\n", &format!("\n\n// Reads {}: move them together.\n", read.join(" and ")), 1);
    }
    let texts = [text, serve(row), bench(row, inputs, &plan.load), values(row, &plan.latency_model, inputs)];
    Ok(OF_ROW.into_iter().zip(texts).collect())
}

fn draft(place: &Path, write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> Result<(), Refusal> {
    let written = File::create(place).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| Refusal::input(format!("cannot write `{}`: {error}", place.display())))
}

pub(crate) fn write_json(out: &mut (impl Write + ?Sized), plan: &Plan) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, plan)?;
    writeln!(out)
}

/// The scenario that reproduces a row.
pub(crate) fn script(row: &Row, inputs: &Inputs) -> Result<String, Refusal> {
    let cut = Cut { requests: row.requests, factor: 1.0 };
    Case { shape: &row.deployment, replicas: row.replicas, cut, slower: 1.0 }.script(inputs)
}

/// A script that starts the engines.
fn serve(row: &Row) -> String {
    let (shape, replicas) = (&row.deployment, row.replicas);
    let mut text = format!("# {}: {}.\n", row.label(), counted(row.gpus, "GPU"));
    match shape.mode {
        Mode::Aggregated => {
            text.push_str(&format!(
                "# Start {replicas}, each on {}, behind a router that sends requests to the least loaded.\n",
                counted(shape.gpus_per_engine, "GPU")
            ));
            text.push_str(&format!("{}\n", shape.command));
        }
        Mode::Disaggregated { prefill, decode } => {
            for (role, kind, count) in [("prefill", "kv_producer", prefill), ("decode", "kv_consumer", decode)] {
                let mut config = format!("{{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"{kind}\"}}");
                if role == "prefill" && shape.host_gib_per_gpu > 0 {
                    config = with_offloading(&config, shape.host_gib_per_engine());
                }
                text.push_str(&format!(
                    "# Start {} of these for {role}, each on {}.\n{} --kv-transfer-config '{config}'\n",
                    count * replicas,
                    counted(shape.gpus_per_engine, "GPU"),
                    shape.simulated_command()
                ));
            }
            text.push_str("# A router of prefill and decode passes kv_transfer_params from one to the other.\n");
        }
    }
    text
}

/// The `--kv-transfer-config` of both this connector and offloading to host memory. `--kv-offloading-size` would
/// replace the connector.
fn with_offloading(connector: &str, gib: u32) -> String {
    let bytes = u64::from(gib) << 30;
    format!(
        "{{\"kv_connector\": \"MultiConnector\", \"kv_role\": \"kv_both\", \"kv_connector_extra_config\": \
         {{\"connectors\": [{connector}, {{\"kv_connector\": \"OffloadingConnector\", \"kv_role\": \"kv_both\", \
         \"kv_connector_extra_config\": {{\"cpu_bytes_to_use\": {bytes}}}}}]}}}}"
    )
}

/// A command of `vllm bench serve` with approximately this load.
fn bench(row: &Row, inputs: &Inputs, facts: &Facts) -> String {
    let mean = |tokens: u64| (tokens as f64 / facts.requests as f64).round().max(1.0);
    let rate = match &inputs.load {
        Load::Drawn { rate_per_s, .. } => *rate_per_s,
        Load::Trace { .. } => facts.requests as f64 / facts.span_s.max(1e-3),
    };
    format!(
        "# Confirms row {} by its mean lengths and rate. `vcr plan verify` plays the load itself.\n\
         vllm bench serve --model {} --dataset-name random --random-input-len {} --random-output-len {} \\\n    \
         --request-rate {rate:.3} --num-prompts {} --seed {} --ignore-eos \\\n    \
         --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99\n",
        row.number,
        row.deployment.model,
        mean(facts.prompt_tokens),
        mean(facts.output_tokens),
        facts.requests,
        inputs.seed,
    )
}

/// Values for the chart `deploy/helm/vcr` that make its servers behave like this row.
fn values(row: &Row, latency: &str, inputs: &Inputs) -> String {
    let shape = &row.deployment;
    let (model, gpu) = (&shape.model, &shape.gpu);
    let stated = inputs.latency.as_deref().filter(|name| !["tables", "roofline"].contains(name));
    let latency = match (stated, latency) {
        (Some(path), _) => format!("fitted(#{{ path: \"{path}\" }})"),
        (None, "tables") => format!(
            "tables(#{{ system: \"{}\", model: \"{model}\", tensor_parallel: {} }})",
            gpu.replace('-', "_"),
            shape.tensor_parallel
        ),
        _ => format!(
            "roofline(#{{ model: model(\"{model}\", #{{ tensor_parallel: {} }}), gpu: \"{gpu}\" }})",
            shape.tensor_parallel
        ),
    };
    let mut words = vec![
        format!("--vllm-args={}", shape.simulated_command()),
        format!("--vllm-args-gpu={gpu}"),
        format!("--latency={latency}"),
    ];
    if shape.data_parallel > 1 {
        words.push(format!("--data-parallel-size={}", shape.data_parallel));
    }
    if has_drafts(&shape.flags) {
        let rates: Vec<String> = inputs.space.acceptance_rates.iter().map(ToString::to_string).collect();
        words.push(format!("--acceptance-rates={}", rates.join(",")));
    }
    let args = |indent: &str| {
        words.iter().map(|word| format!("{indent}- '{}'\n", word.replace('\'', "''"))).collect::<String>()
    };
    let without_host = if shape.host_gib_per_gpu > 0 { "# They keep no KV in host memory.\n" } else { "" };
    let head = format!(
        "# Simulated servers that behave as row {}: helm install plan deploy/helm/vcr -f values.yaml --set image.repository=IMAGE\n{without_host}",
        row.number
    );
    match shape.mode {
        Mode::Aggregated => {
            format!("{head}server:\n  enabled: true\n  replicas: {}\n  args:\n{}", row.replicas, args("    "))
        }
        Mode::Disaggregated { prefill, decode } => format!(
            "{head}server:\n  enabled: false\npd:\n  enabled: true\n  prefill:\n    replicas: {}\n    args:\n{}  \
             decode:\n    replicas: {}\n    args:\n{}",
            prefill * row.replicas,
            args("      "),
            decode * row.replicas,
            args("      ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_from_the_folder() {
        let of = |folder: &str, file: &str| from(Path::new(folder), Path::new(file)).display().to_string();
        assert_eq!(of("/home/me/plan/row-1", "/home/me/traces/one.jsonl"), "../../traces/one.jsonl");
        assert_eq!(of("/home/me", "/home/me/one.jsonl"), "one.jsonl");
        assert_eq!(of("/home/me/plan", "/data/one.jsonl"), "/data/one.jsonl");
    }
}
