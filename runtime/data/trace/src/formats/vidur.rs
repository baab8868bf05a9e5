//! The CSV traces of Vidur. Vidur's traces of lengths have no arrivals.

use super::csv::{Columns, seconds_ns};

/// The columns. Arrivals are in seconds.
pub(crate) const COLUMNS: Columns = Columns {
    time: "arrived_at",
    prompt_tokens: "num_prefill_tokens",
    output_tokens: "num_decode_tokens",
    session: Some("session_id"),
    elapsed: None,
    without_effect: &["request_id", "num_total_tokens", "pd_ratio", "session_turn_index"],
    time_ns: seconds_ns,
    has_failures: false,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceOptions;
    use crate::formats::csv::read;

    #[test]
    fn arrivals_are_seconds_and_may_be_missing_where_they_are_ignored() {
        let csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,591,140\n0.125,547,248\n";
        let trace = read(csv.as_bytes(), "v.csv", &TraceOptions::default(), &COLUMNS).unwrap();
        let read_of: Vec<_> = trace.requests.iter().map(|r| (r.arrival_ns, r.input_tokens, r.output_tokens)).collect();
        assert_eq!(read_of, [(Some(0), 591, 140), (Some(125_000_000), 547, 248)]);
        let lengths = ",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n0,591.0,140.0,731.0,4.22\n";
        let error = read(lengths.as_bytes(), "v.csv", &TraceOptions::default(), &COLUMNS).unwrap_err().to_string();
        assert!(error.contains("line 1, field `arrived_at`: the header has no such column"), "{error}");
        let options = TraceOptions { first_timestamp_required: false, ..TraceOptions::default() };
        let trace = read(lengths.as_bytes(), "v.csv", &options, &COLUMNS).unwrap();
        assert_eq!((trace.requests[0].input_tokens, trace.warnings.len()), (591, 0));
        let wrong =
            read("arrived_at,num_prefill_tokens,num_decode_tokens\nsoon,1,1\n".as_bytes(), "v.csv", &options, &COLUMNS);
        assert!(wrong.unwrap_err().to_string().contains("`soon` is not a number of seconds"));
    }
}
