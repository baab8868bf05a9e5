//! The BurstGPT traces: the first version, and the second version, which has sessions.

use super::csv::{Columns, seconds_ns};

/// The columns. Timestamps are seconds since the midnight before the first request.
pub(crate) const COLUMNS: Columns = Columns {
    time: "Timestamp",
    prompt_tokens: "Request tokens",
    output_tokens: "Response tokens",
    session: Some("Session ID"),
    elapsed: Some("Elapsed time"),
    without_effect: &["Model", "Total tokens", "Log Type"],
    time_ns: seconds_ns,
    has_failures: true,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::csv::read;
    use crate::{Strictness, Trace, TraceOptions};

    fn check(csv: &str, options: &TraceOptions) -> Result<Trace, String> {
        read(csv.as_bytes(), "b.csv", options, &COLUMNS).map_err(|error| error.to_string())
    }

    const FIRST: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                         5,ChatGPT,472,18,490,Conversation log\n\
                         45,ChatGPT,1087,0,1087,Conversation log\n\
                         118.25,GPT-4,417,276,693,API log\n";

    #[test]
    fn timestamps_are_seconds_and_failures_are_left_out() {
        let trace = check(FIRST, &TraceOptions::default()).unwrap();
        let read: Vec<_> = trace.requests.iter().map(|r| (r.arrival_ns, r.input_tokens, r.output_tokens)).collect();
        assert_eq!(read, [(Some(0), 472, 18), (Some(113_250_000_000), 417, 276)]);
        assert_eq!(
            trace.warnings[0].to_string(),
            "a request without response tokens failed when it was recorded and was left out on 1 row(s), first on line 3"
        );
        let strict = TraceOptions { strictness: Strictness::Strict, ..TraceOptions::default() };
        let error = check(FIRST, &strict).unwrap_err();
        assert!(error.contains("line 3, field `Response tokens`: "), "{error}");
    }

    #[test]
    fn turns_of_a_session_wait_for_the_end_of_the_turn_before() {
        let csv = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                   0,a,2.5,ChatGPT,10,5,15,Conversation log\n\
                   4,b,1,ChatGPT,10,5,15,Conversation log\n\
                   10,a,8,ChatGPT,20,5,25,Conversation log\n\
                   12,a,,ChatGPT,30,5,35,Conversation log\n\
                   20,a,1,ChatGPT,40,5,45,Conversation log\n\
                   21,,1,GPT-4,40,5,45,API log\n";
        let trace = check(csv, &TraceOptions::default()).unwrap();
        assert_eq!(trace.warnings, []);
        let turns: Vec<_> = trace.requests.iter().map(|r| (r.session, r.turn, r.delay_ns / 1_000_000)).collect();
        assert_eq!(turns, [(0, 0, 0), (1, 0, 0), (0, 1, 7500), (0, 2, 0), (0, 3, 8000), (2, 0, 0)]);
    }
}
