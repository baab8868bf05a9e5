//! Formats the metrics as the client requests.

use axum::http::{HeaderMap, header};

use super::frontends::SUMMARIES;
use super::table::TABLE;
use crate::server::frontend_kind::FrontendKind;

/// The content type of OpenMetrics.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The content type of the Prometheus text format.
const PROMETHEUS: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Returns content type and text for a client with these headers. vLLM's Rust frontend has one format; its Python
/// frontend uses OpenMetrics on request.
pub(crate) fn page(
    open_metrics: String,
    frontend: FrontendKind,
    headers: &HeaderMap,
    start_s: Option<f64>,
) -> (&'static str, String) {
    if frontend == FrontendKind::Rust {
        return (CONTENT_TYPE, open_metrics);
    }
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let asks = accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/openmetrics-text"));
    if asks { (CONTENT_TYPE, summaries(&open_metrics)) } else { (PROMETHEUS, prometheus(&open_metrics, start_s)) }
}

fn is_summary(name: &str) -> bool {
    SUMMARIES.iter().any(|summary| TABLE[*summary as usize].name == name)
}

/// Whether a line is a bucket that must be dropped, because summaries have no buckets.
fn is_no_bucket(line: &str) -> bool {
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    name.strip_suffix("_bucket").is_some_and(is_summary)
}

fn kind_of<'a>(name: &str, kind: &'a str) -> &'a str {
    if is_summary(name) { "summary" } else { kind }
}

/// Converts histograms that represent summaries to summaries.
fn summaries(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| !is_no_bucket(line)) {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, kind)) => out.extend(["# TYPE ", name, " ", kind_of(name, kind)]),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Suffixes of samples that occur once per series of a counter, histogram or summary.
const ONCE: [&str; 2] = ["_total", "_count"];

/// Writes when the series of a family were created, as `prometheus_client` does.
#[derive(Default)]
struct Created<'a> {
    /// The name and help of the family.
    family: Option<(&'a str, &'a str)>,
    labels: Vec<&'a str>,
}

impl<'a> Created<'a> {
    /// Starts a family. Counters of the process have no creation time.
    fn begin(&mut self, name: &'a str, help: &'a str, kind: &str) {
        let has_times = matches!(kind, "counter" | "histogram" | "summary") && !name.starts_with("process_");
        self.family = has_times.then_some((name, help));
        self.labels.clear();
    }

    /// Reads a sample of the family.
    fn see(&mut self, line: &'a str) {
        let Some((name, _)) = self.family else { return };
        let Some(rest) = line.strip_prefix(name) else { return };
        let Some(rest) = ONCE.iter().find_map(|end| rest.strip_prefix(end)) else { return };
        if let Some((labels, _)) = rest.rsplit_once(' ') {
            self.labels.push(labels);
        }
    }

    /// Writes the creation times after the family.
    fn end(&mut self, out: &mut String, start_s: Option<f64>) {
        let family = self.family.take().filter(|_| !self.labels.is_empty());
        let (Some((name, help)), Some(start_s)) = (family, start_s) else { return };
        out.extend(["# HELP ", name, "_created ", help, "\n# TYPE ", name, "_created gauge\n"]);
        for labels in self.labels.drain(..) {
            out.push_str(&format!("{name}_created{labels} {start_s}\n"));
        }
    }
}

/// Converts OpenMetrics to the Prometheus text format: counters have their suffix in the family's name, and there
/// is no end mark.
fn prometheus(open_metrics: &str, start_s: Option<f64>) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let (mut help, mut created) = (None, Created::default());
    for line in open_metrics.lines().filter(|line| *line != "# EOF" && !is_no_bucket(line)) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The type on the next line decides the name.
            help = rest.split_once(' ').map(|(_, help)| help);
            created.end(&mut out, start_s);
            continue;
        }
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                created.begin(name, help.unwrap_or_default(), kind);
                if let Some(help) = help.take() {
                    out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
                }
                out.extend(["# TYPE ", name, suffix, " ", kind_of(name, kind)]);
            }
            None => {
                created.see(line);
                out.push_str(line);
            }
        }
        out.push('\n');
    }
    created.end(&mut out, start_s);
    out
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TEXT: &str = "# HELP a A.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP http_request_size_bytes S.\n\
        # TYPE http_request_size_bytes histogram\nhttp_request_size_bytes_sum 5\nhttp_request_size_bytes_count 1\n\
        http_request_size_bytes_bucket{le=\"+Inf\"} 1\n# EOF\n";

    #[test]
    fn the_format_is_what_the_client_accepts() {
        let with = |accept: Option<&'static str>, frontend| {
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|accept| (header::ACCEPT, HeaderValue::from_static(accept))));
            page(TEXT.to_owned(), frontend, &headers, Some(7.5))
        };
        let summary = "# HELP http_request_size_bytes S.\n# TYPE http_request_size_bytes summary\n\
            http_request_size_bytes_sum 5\nhttp_request_size_bytes_count 1\n";
        let created = "# HELP a_created A.\n# TYPE a_created gauge\na_created{x=\"1\"} 7.5\n";
        let of_summary = "# HELP http_request_size_bytes_created S.\n# TYPE http_request_size_bytes_created gauge\n\
            http_request_size_bytes_created 7.5\n";
        let plain =
            format!("# HELP a_total A.\n# TYPE a_total counter\na_total{{x=\"1\"}} 2\n{created}{summary}{of_summary}");
        for accept in [None, Some("*/*"), Some("text/plain;version=0.0.4;q=0.3,*/*;q=0.2")] {
            assert_eq!(with(accept, FrontendKind::Python), (PROMETHEUS, plain.clone()), "{accept:?}");
        }
        let open = format!("# HELP a A.\n# TYPE a counter\na_total{{x=\"1\"}} 2\n{summary}# EOF\n");
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(with(Some(prometheus), FrontendKind::Python), (CONTENT_TYPE, open));
        assert_eq!(with(None, FrontendKind::Rust), (CONTENT_TYPE, TEXT.to_owned()));
    }
}
