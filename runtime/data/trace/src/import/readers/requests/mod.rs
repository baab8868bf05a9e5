//! Reads lists of requests that vcr writes: `requests.jsonl` of `vcr run --out`, the lines of `vcr replay
//! --report-jsonl`, and tables with a row for each request, such as the CSV and Parquet of `vcr inspect convert`.

mod blocks;
mod run;
mod table;

use std::io::BufRead;
use std::path::Path;

use crate::capture::{CaptureMeta, FinishReason, GapSummary};
use crate::{PARQUET_MAGIC, VcrOutput};
use serde_json::{Map, Value};

use crate::import::error::{Place, Problem};
use crate::import::input::Rows;
use crate::import::output::Out;
use crate::import::readers::dataset::table::{RowSink, read_csv};
use crate::import::readers::workload::as_workload;
use crate::import::time::duration_ns;
use crate::import::{Format, ImportError, ImportOptions};

/// Reads a stream. `start` contains the first bytes of the stream.
pub(crate) fn read(
    reader: impl BufRead,
    start: &[u8],
    name: &str,
    options: &ImportOptions,
    out: &mut Out<'_>,
) -> Result<(), ImportError> {
    match VcrOutput::detect(start) {
        Some(VcrOutput::RunRequests) => run::read(Rows::new(reader, name), options, out),
        Some(VcrOutput::ReplayRequests) => run::read_replay(Rows::new(reader, name), out),
        _ => {
            let mut table = table::Table::new(name, options, out);
            let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
            if text.starts_with(PARQUET_MAGIC) {
                crate::import::parquet::read_stream(reader, name, &mut table)?;
            } else if text.starts_with(b"{") {
                read_lines(Rows::new(reader, name), &mut table)?;
            } else {
                read_csv(reader, name, &mut table)?;
            }
            table.finish()
        }
    }
}

pub(crate) fn read_parquet_file(path: &Path, options: &ImportOptions, out: &mut Out<'_>) -> Result<(), ImportError> {
    let name = path.display().to_string();
    let mut table = table::Table::new(&name, options, out);
    crate::import::parquet::read_file(path, &name, &mut table)?;
    table.finish()
}

fn read_lines(mut rows: Rows<'_, impl BufRead>, table: &mut table::Table<'_, '_>) -> Result<(), ImportError> {
    while let Some((line, row)) = rows.next_as::<Map<String, Value>>(table.tally())? {
        // Some writers start with a line about the file.
        if line == 1 && !table.has_lengths(&row) {
            table.tally().note("first lines that are not a request");
            continue;
        }
        table.add(Place::Line(line), &row)?;
    }
    Ok(())
}

/// Writes the meta line of the capture. A list without any times is a workload.
fn begin(out: &mut Out<'_>, is_workload: bool, block_size_tokens: Option<u32>) -> Result<(), ImportError> {
    let other = if is_workload { as_workload() } else { Map::new() };
    out.meta(Format::Requests, CaptureMeta { other, block_size_tokens, ..CaptureMeta::default() })
}

fn ns_of_ms(field: &str, ms: Option<f64>) -> Result<Option<u64>, Problem> {
    ms.map(|ms| duration_ns(field, ms, 1e6)).transpose()
}

fn since(arrival_ns: u64, field: &str, at_ns: Option<u64>) -> Result<Option<u64>, Problem> {
    let early = || Problem::new(field, "the time is before the arrival; correct the row");
    at_ns.map(|at_ns| at_ns.checked_sub(arrival_ns).ok_or_else(early)).transpose()
}

fn mean_gap(ttft_ns: Option<u64>, last_ns: Option<u64>, output_tokens: u32) -> Option<GapSummary> {
    let count = output_tokens.checked_sub(1).filter(|count| *count > 0)?;
    let decode_ns = last_ns?.checked_sub(ttft_ns?)?;
    Some(GapSummary { mean_ns: (decode_ns + u64::from(count) / 2) / u64::from(count), count })
}

/// The finish reason of a request whose answer is complete.
fn whole(output_tokens: u32, max_tokens: u32) -> FinishReason {
    if output_tokens < max_tokens { FinishReason::Stop } else { FinishReason::Length }
}

#[cfg(test)]
mod tests;
