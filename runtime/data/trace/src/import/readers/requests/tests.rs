use crate::capture::{CaptureLine, CaptureMeta, RequestRecord};

use crate::import::{Format, ImportError, ImportOptions, QUEUE_FROM_ARRIVAL, import_bytes};

fn imported(text: &str, options: &ImportOptions) -> Result<(CaptureMeta, Vec<RequestRecord>), ImportError> {
    let (mut meta, mut requests) = (CaptureMeta::default(), Vec::new());
    let mut sink = |line| {
        match line {
            CaptureLine::Meta(its) => meta = *its,
            CaptureLine::Request(request) => requests.push(*request),
            _ => {}
        }
        Ok(())
    };
    import_bytes(text.as_bytes(), "x", Format::Requests, options, &mut sink)?;
    Ok((meta, requests))
}

fn problem(text: &str) -> String {
    imported(text, &ImportOptions::default()).expect_err("a problem").to_string()
}

const RUN: &str = r#"{"of":"a","id":0,"workload":"w","session":3,"turn":0,"status":"completed","prompt_tokens":20,"max_tokens":5,"output_tokens":5,"cached_tokens":16,"arrival_ms":1.5,"scheduled_ms":2.0,"prefill_end_ms":11.5,"first_token_ms":11.5,"last_token_ms":51.5,"end_ms":51.5,"ttft_ms":10.0,"e2e_ms":50.0,"engine":"engines 1","preemptions":1,"retries":0}
{"of":"b","id":0,"workload":"w","session":4,"turn":1,"status":"rejected","reason":"too long","prompt_tokens":20,"max_tokens":5,"output_tokens":0,"cached_tokens":0,"arrival_ms":2.0,"end_ms":2.0,"preemptions":0,"retries":0}
"#;

#[test]
fn requests_of_a_run_keep_their_times_from_arrival() {
    let of = |run: &str| ImportOptions { run: Some(run.to_owned()), ..ImportOptions::default() };
    let (meta, requests) = imported(RUN, &of("a")).expect("requests");
    assert_eq!((meta.source.as_deref(), requests.len()), (Some("requests"), 1));
    assert_eq!(meta.other.get(QUEUE_FROM_ARRIVAL), Some(&true.into()));
    let request = &requests[0];
    assert_eq!((request.arrival_ns, request.queue_ns), (Some(1_500_000), Some(500_000)));
    assert_eq!((request.ttft_ns, request.end_ns), (Some(10_000_000), Some(50_000_000)));
    let gaps = request.gap_summary.expect("gaps");
    assert_eq!((gaps.mean_ns, gaps.count), (10_000_000, 4));
    assert_eq!((request.session.as_deref(), request.finish_reason.as_deref()), (Some("w/3"), Some("length")));
    assert_eq!((request.cached_tokens, request.preemptions), (16, 1));
    let (_, requests) = imported(RUN, &of("b")).expect("requests");
    assert_eq!((requests[0].finish_reason.as_deref(), requests[0].error.as_deref()), (Some("error"), Some("too long")));
    let unknown = imported(RUN, &of("c")).expect_err("no such run").to_string();
    assert!(unknown.contains("field `of`: unknown run `c`: expected a, b"), "{unknown}");
    assert!(problem(RUN).contains("line 2, field `of`: the file holds several runs, such as `a` and `b`"));
}

#[test]
fn requests_of_a_replay_are_read() {
    let text = r#"{"session_id":"s","turn_index":0,"uuid":"u","arrival_time_ms":2.0,"first_admit_ms":3.0,"terminal_time_ms":9.0,"first_token_ms":5.0,"last_token_ms":9.0,"ttft_ms":3.0,"input_length":7,"requested_output_length":9,"output_length":3,"reused_input_tokens":4,"decode_worker_idx":2,"terminal_status":"completed"}"#;
    let (_, requests) = imported(text, &ImportOptions::default()).expect("requests");
    let request = &requests[0];
    assert_eq!((request.prompt_tokens, request.output_tokens, request.rank), (7, 3, 2));
    assert_eq!(
        (request.ttft_ns, request.end_ns, request.queue_ns),
        (Some(3_000_000), Some(7_000_000), Some(1_000_000))
    );
    assert_eq!((request.finish_reason.as_deref(), request.session.as_deref()), (Some("stop"), Some("s")));
}

#[test]
fn plain_columns_are_a_table_of_requests() {
    let text =
        "request_id,arrival_s,input_tokens,output_tokens,note\nr1,1700000000.5,10,20,x\nr2,1700000001.25,11,21,\n";
    let (meta, requests) = imported(text, &ImportOptions::default()).expect("requests");
    assert_eq!(meta.other.get("workload"), Some(&true.into()));
    let arrivals: Vec<_> = requests.iter().map(|request| request.arrival_ns).collect();
    assert_eq!(arrivals, [Some(0), Some(750_000_000)]);
    let text = "arrival_ms,prompt_tokens,output_tokens,ttft_ms,e2e_ms,tpot_ms\n0.5,10,3,2,6,2\n";
    let (meta, requests) = imported(text, &ImportOptions::default()).expect("requests");
    assert_eq!(meta.other.get("workload"), None);
    let request = &requests[0];
    assert_eq!(
        (request.arrival_ns, request.ttft_ns, request.end_ns),
        (Some(500_000), Some(2_000_000), Some(6_000_000))
    );
    assert_eq!(request.gap_summary.expect("gaps").count, 2);
}

/// `requests.csv` of a run has `end_ms` on its clock in addition to `e2e_ms`, the time since the arrival.
#[test]
fn ends_on_the_clock_do_not_stand_for_durations() {
    let text = "arrival_ms,prompt_tokens,output_tokens,e2e_ms,end_ms,ttft_ms\n700,10,3,6,706.5,2\n";
    let (_, requests) = imported(text, &ImportOptions::default()).expect("requests");
    assert_eq!(requests[0].end_ns, Some(6_000_000));
    let text = "arrival_ms,prompt_tokens,output_tokens,end_ms\n700,10,3,6\n";
    let (_, requests) = imported(text, &ImportOptions::default()).expect("requests");
    assert_eq!(requests[0].end_ns, Some(6_000_000));
}

#[test]
fn the_columns_of_a_run_are_no_news() {
    let notes = |columns: &str| {
        let text = format!("prompt_tokens,output_tokens,{columns}\n1,2,w,completed,3,4\n");
        let mut sink = |_| Ok(());
        let read = import_bytes(text.as_bytes(), "x", Format::Requests, &ImportOptions::default(), &mut sink);
        read.expect("requests").notes.into_iter().map(|note| note.what).collect::<Vec<_>>()
    };
    assert_eq!(notes("workload,status,scheduled_ms,retries"), [""; 0]);
    assert_eq!(notes("workload,status,scheduled_ms,note"), ["values of the column `note`"]);
    assert_eq!(notes("workload,status,scheduled,retries").len(), 4);
}

#[test]
fn wrong_cells_are_named() {
    let row = |columns: &str, cells: &str| problem(&format!("prompt_tokens,output_tokens,{columns}\n{cells}\n"));
    assert_eq!(
        row("arrival", "1,2,3"),
        "`x`, row 1, field `arrival`: invalid column `arrival`: expected a unit in its name, such as `arrival_ms`"
    );
    assert!(row("rank", "x,2,3").contains("field `prompt_tokens`: invalid value `x`: expected a whole number"));
    assert!(row("finish_reason", "1,2,done").contains("invalid value `done`: expected stop, length, abort"));
    assert!(row("ttft_ms", "1,2,-1").contains("field `ttft_ms`"));
    assert!(row("rank", "1,,0").contains("field `output_tokens`: the row has none; name it one of output_tokens, "));
}
