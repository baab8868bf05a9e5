//! The CSV traces of the Splitwise simulator.

use super::csv::{Columns, seconds_ns};

/// The columns. Arrivals are in seconds.
pub(crate) const COLUMNS: Columns = Columns {
    time: "arrival_timestamp",
    prompt_tokens: "prompt_size",
    output_tokens: "token_size",
    session: None,
    elapsed: None,
    without_effect: &["request_id", "request_type", "application_id", "batch_size"],
    time_ns: seconds_ns,
    has_failures: false,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceOptions;
    use crate::formats::csv::read;

    #[test]
    fn arrivals_are_seconds() {
        let csv = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n\
                   0,2,0,0.5,1,374,44\n1,2,0,2.75,1,396,109\n";
        let trace = read(csv.as_bytes(), "s.csv", &TraceOptions::default(), &COLUMNS).unwrap();
        assert_eq!(trace.warnings, []);
        let read: Vec<_> = trace.requests.iter().map(|r| (r.arrival_ns, r.input_tokens, r.output_tokens)).collect();
        assert_eq!(read, [(Some(0), 374, 44), (Some(2_250_000_000), 396, 109)]);
    }
}
