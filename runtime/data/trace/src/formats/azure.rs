//! Reads the Azure LLM inference traces (CSV files of 2023 and 2024).

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

use super::csv::Columns;
use crate::RowProblem;

pub(crate) const COLUMNS: Columns = Columns {
    time: "TIMESTAMP",
    prompt_tokens: "ContextTokens",
    output_tokens: "GeneratedTokens",
    session: None,
    elapsed: None,
    without_effect: &[],
    time_ns,
    has_failures: false,
};

/// Nanoseconds since 1970. The 2023 files have no UTC offset and are taken as UTC; the 2024 files end in `+00:00`.
pub(crate) fn time_ns(text: &str) -> Result<i64, RowProblem> {
    // The parser of civil times would accept an offset and ignore it, so an offset is searched first. After the
    // date, a sign or a Z can only mean an offset.
    let has_offset = text.bytes().skip("2023-11-16".len()).any(|byte| matches!(byte, b'+' | b'-' | b'Z' | b'z'));
    let absolute = if has_offset {
        text.parse::<Timestamp>()
    } else {
        text.parse::<civil::DateTime>().and_then(|local| local.to_zoned(TimeZone::UTC)).map(|zoned| zoned.timestamp())
    };
    let not_a_time = |cause: String| RowProblem::NotATime { text: text.to_owned(), cause };
    if text.parse::<f64>().is_ok() {
        let cause = "a table with seconds has the columns `timestamp_s`, `prompt_tokens` and `output_tokens`";
        return Err(not_a_time(cause.to_owned()));
    }
    let ns = absolute.map_err(|error| not_a_time(error.to_string()))?.as_nanosecond();
    i64::try_from(ns).map_err(|_| not_a_time("beyond 292 years from 1970".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::csv::read;
    use crate::{Trace, TraceOptions};

    fn check(csv: &str) -> Result<Trace, String> {
        read(csv.as_bytes(), "t.csv", &TraceOptions::default(), &COLUMNS).map_err(|e| e.to_string())
    }

    #[test]
    fn times_keep_their_last_digit_and_start_at_the_earliest() {
        let trace = check(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n\
             2023-11-16 18:15:46.6805901,374,44\n\
             2023-11-16 18:15:46.6805900,396,0\n\
             2023-11-17 00:00:00,5,1",
        )
        .unwrap();
        let arrivals: Vec<_> = trace.requests.iter().map(|r| r.arrival_ns).collect();
        assert_eq!(arrivals, [Some(100), Some(0), Some(20_653_319_410_000)]);
        assert_eq!(trace.requests[1].output_tokens, 0);
        assert_eq!(trace.requests[2].line, 4);
        assert_eq!(trace.sessions, 3);
        assert!(trace.hash_ids(&trace.requests[0]).is_empty());
    }

    #[test]
    fn offsets_column_order_and_extra_columns_are_understood() {
        let trace = check(
            "GeneratedTokens,Region,ContextTokens,TIMESTAMP\r\n\
             1,x,2,2024-05-10 00:00:00.009930+00:00\r\n\
             1,x,2,2024-05-10 02:00:00.009931+02:00\r\n",
        )
        .unwrap();
        assert_eq!(trace.requests[1].arrival_ns, Some(1_000));
        assert_eq!(trace.warnings[0].to_string(), "unknown field `Region` was ignored on 2 row(s), first on line 2");
    }

    #[test]
    fn seconds_are_no_dates() {
        let error = check("TIMESTAMP,ContextTokens,GeneratedTokens\n1716300000.5,1,1\n").expect_err("a number");
        assert!(error.contains("`1716300000.5` is not a time such as") && error.contains("`timestamp_s`"), "{error}");
    }

    #[test]
    fn broken_characters_around_a_comma_are_an_error() {
        // Found by fuzzing: without the comma, these bytes are one character.
        let options = TraceOptions::default();
        let error = read(&b"\xd2,\xbb"[..], "t.csv", &options, &COLUMNS).expect_err("not UTF-8");
        assert!(error.to_string().contains("line 1: the row is not UTF-8 text"));
    }

    #[test]
    fn errors_name_line_and_column() {
        let with = |row: &str| check(&format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n")).unwrap_err();
        assert!(with("yesterday,1,1").starts_with("trace `t.csv`, line 2, field `TIMESTAMP`: "));
        assert!(with("2023-02-30 00:00:00,1,1").contains("line 2, field `TIMESTAMP`"));
        assert!(with("2023-11-16 18:15:46,-1,1").contains("`-1` is not a whole number"));
        assert!(with("2023-11-16 18:15:46,1,1.5").contains("field `GeneratedTokens`"));
        assert!(with("2023-11-16 18:15:46,0,1").contains("the prompt has no tokens"));
        assert!(with("2023-11-16 18:15:46,1").contains("line 2: 2 cells, but the header has 3"));
        assert!(with("\n\r\n2023-11-16 18:15:46,x,1").contains("line 4, field `ContextTokens`"));
        assert!(with("2023-11-16 18:15:46,1,1\r2023-11-16 18:15:46,1,1").contains("line 2: there is"));
        assert!(with("").contains("holds no request"));
        assert!(check("").unwrap_err().contains("holds no request"));
        assert!(
            check("TIMESTAMP,ContextTokens\n")
                .unwrap_err()
                .contains("line 1, field `GeneratedTokens`: the header has no such column")
        );
    }
}
