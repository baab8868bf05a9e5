//! Writes a Weka/AgentX corpus as rows in the agentic Mooncake format, as Dynamo's replay reads it:
//!
//!     weka CORPUS OUT.jsonl
//!
//! `vcr replay OUT.jsonl` must then give the same result as `vcr replay CORPUS`; see ../../weka.py.

use std::fs::File;
use std::io::{BufWriter, Write};

use aisimulate_core::replay::loadgen::WekaImporter;
use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [corpus, out] = &arguments[..] else { bail!("usage: weka CORPUS OUT.jsonl") };
    let importer = WekaImporter::open(corpus)?;
    let mut out = BufWriter::new(File::create(out)?);
    serde_json::to_writer(&mut out, importer.header())?;
    importer.for_each_row(|row| {
        writeln!(out)?;
        Ok(serde_json::to_writer(&mut out, &row)?)
    })?;
    Ok(out.flush()?)
}
