//! Writes the KV transfers between live engines: a line for each pair of engines, in `report.html` and
//! `summary.md`.

use std::io::{self, Write};

use crate::document::{KvTransfers, Run};
use crate::text::{Cell, Escaped, time};

/// The columns after run, from and to.
const COLUMNS: [&str; 7] = ["transfers", "bytes", "pages", "queue", "connect", "move", "failed"];

fn pairs(runs: &[Run]) -> impl Iterator<Item = (&Run, &KvTransfers)> {
    runs.iter().flat_map(|run| {
        let of_run = run.target.iter().flat_map(|target| &target.kv_transfers);
        of_run.map(move |pair| (run, pair))
    })
}

/// The cells of [`COLUMNS`] for a pair of engines. Times are means over the transfers.
fn cells(pair: &KvTransfers) -> [String; 7] {
    let mean = |sum_ms: f64| match pair.transfers {
        0 => "–".to_owned(),
        _ if sum_ms == 0.0 => "0".to_owned(),
        transfers => time(sum_ms / transfers as f64),
    };
    let failures: Vec<String> = pair.failures.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    [
        pair.transfers.to_string(),
        pair.bytes.to_string(),
        pair.pages.to_string(),
        mean(pair.queue_ms),
        mean(pair.connect_ms),
        mean(pair.move_ms),
        if failures.is_empty() { "0".to_owned() } else { failures.join(", ") },
    ]
}

/// Writes the section of a page, unless there were no transfers. Returns the number of pairs of engines.
pub(crate) fn write_html(out: &mut dyn Write, runs: &[Run], max_rows: usize) -> io::Result<usize> {
    let count = pairs(runs).count();
    if count == 0 {
        return Ok(0);
    }
    writeln!(out, "<section class=\"kv-transfers\"><h2>KV transfers</h2>")?;
    writeln!(out, "<p>Times are means of a transfer.</p>")?;
    write!(out, "<div class=\"wide\"><table><thead><tr><th scope=\"col\">Run</th>")?;
    write!(out, "<th scope=\"col\">from</th><th scope=\"col\">to</th>")?;
    for column in COLUMNS {
        write!(out, "<th scope=\"col\">{column}</th>")?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for (run, pair) in pairs(runs).take(max_rows) {
        let names = (Escaped(&run.name), Escaped(&pair.from), Escaped(&pair.engine));
        write!(out, "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td>", names.0, names.1, names.2)?;
        for cell in cells(pair) {
            write!(out, "<td>{}</td>", Escaped(cell))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div>")?;
    Ok(count)
}

/// Writes the table of `summary.md`, unless there were no transfers. Returns the number of pairs of engines.
pub(crate) fn write_markdown(out: &mut dyn Write, runs: &[Run], max_rows: usize) -> io::Result<usize> {
    let count = pairs(runs).count();
    if count == 0 {
        return Ok(0);
    }
    writeln!(out, "KV transfers (times are means of a transfer):\n")?;
    writeln!(out, "| run | from | to | {} |", COLUMNS.join(" | "))?;
    writeln!(out, "|---|---|---|{}", "--:|".repeat(COLUMNS.len()))?;
    for (run, pair) in pairs(runs).take(max_rows) {
        write!(out, "| {} | {} | {} |", Cell(&run.name), Cell(&pair.from), Cell(&pair.engine))?;
        for cell in cells(pair) {
            write!(out, " {} |", Cell(cell))?;
        }
        writeln!(out)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Target;

    fn text(write: impl Fn(&mut dyn Write) -> io::Result<usize>) -> (usize, String) {
        let mut out = Vec::new();
        let count = write(&mut out).expect("a vector takes everything");
        (count, String::from_utf8(out).expect("it is text"))
    }

    #[test]
    fn each_pair_has_its_sizes_mean_times_and_failures() {
        let pair = KvTransfers {
            engine: "decode 1".to_owned(),
            from: "prefill <0>".to_owned(),
            transfers: 4,
            bytes: 1_048_576,
            pages: 64,
            queue_ms: 2.0,
            connect_ms: 0.0,
            move_ms: 10.0,
            failures: [("corrupt".to_owned(), 2)].into(),
        };
        let failed = KvTransfers { failures: [("timed_out".to_owned(), 1)].into(), ..KvTransfers::default() };
        let target = Some(Target { kv_transfers: vec![pair, failed], ..Target::default() });
        let runs = [Run { name: "a".to_owned(), target, ..Run::default() }, Run::default()];
        let (count, page) = text(|out| write_html(out, &runs, 9));
        assert_eq!((count, page.matches("<tr>").count()), (2, 3), "{page}");
        let row = "<tr><th scope=\"row\">a</th><td>prefill &lt;0&gt;</td><td>decode 1</td><td>4</td><td>1048576</td>\
                   <td>64</td><td>500.0us</td><td>0</td><td>2.50ms</td><td>2 corrupt</td></tr>";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("<td>–</td><td>–</td><td>–</td><td>1 timed_out</td>"), "{page}");
        let (count, table) = text(|out| write_markdown(out, &runs, 1));
        let row = "| a | prefill &lt;0&gt; | decode 1 | 4 | 1048576 | 64 | 500.0us | 0 | 2.50ms | 2 corrupt |\n";
        assert!(count == 2 && table.ends_with(row), "{table}");
        assert_eq!(text(|out| write_html(out, &runs[1..], 9)), (0, String::new()));
        assert_eq!(text(|out| write_markdown(out, &runs[1..], 9)), (0, String::new()));
    }
}
