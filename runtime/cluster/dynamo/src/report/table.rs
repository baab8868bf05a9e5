//! The table that Dynamo prints, which has AIPerf's form.

use super::distribution::Distribution;
use super::summary::Summary;

const HEADER: [&str; 8] = ["Metric", "avg", "min", "max", "p99", "p90", "p75", "std"];

/// The table and the lines below it. Ends with a line feed.
#[must_use]
pub fn aiperf(summary: &Summary) -> String {
    let row = |name: &str, of: &Distribution| {
        let values = [of.mean, of.min, of.max, of.p99, of.p90, of.p75, of.std].map(two_decimals);
        cells(name, values)
    };
    let single = |name: &str, value: f64| {
        let mut values: [String; 7] = std::array::from_fn(|_| "N/A".to_owned());
        values[0] = two_decimals(value);
        cells(name, values)
    };
    let rows = [
        row("Time to First Token (ms)", &summary.ttft),
        row("Time to Second Token (ms)", &summary.ttst),
        row("Request Latency (ms)", &summary.e2e_latency),
        row("Inter Token Latency (ms)", &summary.itl),
        row("Output Token Throughput Per User (tokens/sec/user)", &summary.output_token_throughput_per_user),
        single("Output Token Throughput (tokens/sec)", summary.output_throughput_tok_s),
        single("Request Throughput (requests/sec)", summary.request_throughput_rps),
        single("Request Count (requests)", summary.completed_requests as f64),
    ];
    let wall_time = summary.wall_time_ms.map_or_else(|| "N/A".to_owned(), two_decimals);
    format!(
        "NVIDIA AIPerf | LLM Metrics\n{}Wall Time (ms): {wall_time}\nPrefix Cache Reused Ratio: {}\nFirst Admission \
         Prefix Cache Reused Ratio: {}\n",
        boxed(&rows),
        two_decimals(summary.prefix_cache_reused_ratio),
        two_decimals(summary.first_admission_prefix_cache_reused_ratio),
    )
}

fn cells(name: &str, values: [String; 7]) -> [String; 8] {
    let mut cells = std::iter::once(name.to_owned()).chain(values);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

fn two_decimals(value: f64) -> String {
    let text = format!("{value:.2}");
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, "00"));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}.{decimals}")
}

/// Draws a box around the rows, with heavy lines down to the header.
fn boxed(rows: &[[String; 8]]) -> String {
    let widths: [usize; 8] = std::array::from_fn(|column| {
        let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        longest.max(HEADER[column].len())
    });
    let rule = |left: char, line: &str, between: char, right: char| {
        let lines: Vec<String> = widths.iter().map(|width| line.repeat(width + 2)).collect();
        format!("{left}{}{right}\n", lines.join(&between.to_string()))
    };
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!(" {cell:<width$} "),
            _ => format!(" {cell:>width$} "),
        });
        let padded: Vec<String> = padded.collect();
        format!("┃{}┃\n", padded.join("┃"))
    };
    let mut text = rule('┏', "━", '┳', '┓');
    text.push_str(&line(&HEADER));
    text.push_str(&rule('┡', "━", '╇', '┩'));
    for row in rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        text.push_str(&line(&cells));
    }
    text.push_str(&rule('└', "━", '┴', '┘'));
    text
}

#[cfg(test)]
mod tests {
    use super::two_decimals;

    #[test]
    fn thousands_are_separated() {
        let cases = [(0.0, "0.00"), (999.994, "999.99"), (1000.0, "1,000.00"), (-1234567.891, "-1,234,567.89")];
        for (value, text) in cases {
            assert_eq!(two_decimals(value), text);
        }
    }
}
