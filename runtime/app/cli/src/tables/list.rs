//! `vcr tables list` and `vcr tables show`.

use std::io::{self, Write as _};

use serde_json::{Map, Value, json};
use vcr_latency::tables::{ColumnRange, TablesError, summarize};

use crate::tables::args::{ListArgs, ShowArgs};
use crate::tables::{package, print_json};
use crate::terminal::style::{BOLD, DIM, align_right, bare_table, write_table};
use crate::terminal::text::counted;

pub(super) fn list(args: &ListArgs) -> Result<io::Result<()>, TablesError> {
    let package = package(&args.data)?;
    let mut systems = Vec::new();
    for system in package.systems() {
        // An invalid backend on purpose: the error lists the existing ones.
        let known = match package.stack(&system, "", None) {
            Err(TablesError::Unknown { known, .. }) => known,
            Err(error) => return Err(error),
            Ok(_) => Vec::new(),
        };
        let mut backends = Vec::new();
        for backend in known {
            let stack = package.stack(&system, &backend, None)?;
            backends.push((backend, stack.version().to_owned(), stack.versions()));
        }
        systems.push((system, backends));
    }
    let models = package.models();
    if args.json {
        let systems = systems.iter().map(|(name, backends)| {
            let backends = backends
                .iter()
                .map(|(name, latest, versions)| json!({ "name": name, "latest": latest, "versions": versions }));
            json!({ "name": name, "backends": backends.collect::<Vec<Value>>() })
        });
        let systems = systems.collect::<Vec<Value>>();
        return Ok(print_json(&json!({ "folder": package.folder(), "systems": systems, "models": models })));
    }
    let print = || {
        let mut out = anstream::stdout();
        writeln!(out, "{BOLD}systems{BOLD:#}, with the latest version of each backend")?;
        let mut table = bare_table();
        for (system, backends) in &systems {
            let backends = backends.iter().map(|(name, latest, _)| format!("{name} {latest}"));
            table.add_row([format!("  {system}"), backends.collect::<Vec<String>>().join(", ")]);
        }
        write_table(&mut out, &table)?;
        writeln!(out, "\n{BOLD}models{BOLD:#}, with a configuration")?;
        for model in &models {
            writeln!(out, "  {model}")?;
        }
        writeln!(out, "\n{DIM}`vcr tables show SYSTEM` shows the tables of a system{DIM:#}")
    };
    Ok(print())
}

pub(super) fn show(args: &ShowArgs) -> Result<io::Result<()>, TablesError> {
    let stack = &args.stack;
    let stack = package(&stack.data)?.stack(&stack.system, &stack.backend, stack.version.as_deref())?;
    let mut tables = Vec::new();
    for table in stack.tables() {
        let summary = summarize(&table)?;
        tables.push((table, summary));
    }
    if args.json {
        let tables = tables.iter().map(|(table, summary)| {
            let columns = summary.columns.iter().map(|(name, range)| {
                let range = match range {
                    ColumnRange::Numbers(min, max) => json!({ "min": min, "max": max }),
                    ColumnRange::Texts(texts) => json!(texts),
                };
                (name.clone(), range)
            });
            json!({
                "operator": table.operator,
                "version": table.version,
                "file": table.path,
                "rows": summary.rows,
                "columns": columns.collect::<Map<String, Value>>(),
            })
        });
        let tables = tables.collect::<Vec<Value>>();
        let (system, backend, version) = (stack.system(), stack.backend(), stack.version());
        let shown = json!({ "system": system, "backend": backend, "version": version, "tables": tables });
        return Ok(print_json(&shown));
    }
    let print = || {
        let mut out = anstream::stdout();
        writeln!(out, "{BOLD}{}{BOLD:#}, {} {}", stack.system(), stack.backend(), stack.version())?;
        for (table, summary) in &tables {
            let file = table.path.file_stem().unwrap_or_default().to_string_lossy();
            writeln!(
                out,
                "\n{BOLD}{file}{BOLD:#}  {}, {} {}",
                counted(summary.rows, "row"),
                stack.backend(),
                table.version
            )?;
            let mut columns = bare_table();
            for (name, range) in &summary.columns {
                let range = match range {
                    ColumnRange::Numbers(min, max) => format!("{min} to {max}"),
                    ColumnRange::Texts(texts) => texts.join(", "),
                };
                columns.add_row([format!("  {name}"), range]);
            }
            write_table(&mut out, &columns)?;
        }
        Ok(())
    };
    Ok(print())
}

/// A table whose first column is text and whose other columns are numbers.
pub(super) fn numbers(header: &[&str], rows: Vec<Vec<String>>) -> comfy_table::Table {
    let mut table = bare_table();
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    align_right(&mut table);
    table
}
