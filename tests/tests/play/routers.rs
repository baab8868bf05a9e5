//! Routers between the engines of one process.

use serde_json::json;
use vcr_tests::{FrontendOptions, free_port, shipped_guest, wait_until};

use crate::{is_from, scraped, sum_of, with_each};

/// The frontend distributes its requests by load. The engines' router looks at the prompts: one engine computes
/// those with a common beginning. All answers equal those of a single engine.
#[test]
fn a_router_gives_prompts_that_begin_alike_to_one_engine() {
    let Some(guest) = shipped_guest("prefix-affinity") else { return };
    let guest = guest.to_str().expect("a path in text");
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let args = ["--router", guest, "--router-fallback", "least-loaded", "--metrics-address", &metrics];
    with_each(&options, &args, |_, frontend, play| {
        assert!(play.log().contains("guest prefix-affinity: a router, sha256 "), "{}", play.log());
        let prompt = |group: u32, turn: u32| -> Vec<u32> {
            (0..100).map(|place| 1000 * (group + 1) + place).chain([turn]).collect()
        };
        // Neither the number of groups nor the number of turns fits the number of engines, so round robin cannot
        // give the same result. There are too many groups for all of them to hash to one engine.
        for turn in 0..5 {
            for group in 0..7 {
                let answer = frontend.complete(&json!(prompt(group, turn)), &json!({"max_tokens": 3}));
                assert_eq!(answer["usage"]["completion_tokens"], 3);
            }
        }
        wait_until("all are counted", || sum_of(&scraped(&metrics), "vcr_requests_routed_total") == 35.0);
        let text = scraped(&metrics);
        assert_eq!(sum_of(&text, "vcr_prefix_cache_hits_total"), 7.0 * 4.0 * 96.0, "{text}");
        assert!(sum_of(&text, "vcr_requests_routed_away_total") > 0.0, "{text}");
        assert_eq!(sum_of(&text, "vcr_requests_refused_total"), 0.0);
        wait_until("the frontend counts nothing as running", || {
            frontend.metric("vllm:num_requests_running") == 0.0
                && frontend.metric("vllm:generation_tokens_total") == 105.0
        });
        assert!(!play.log().contains("ERROR"), "{}", play.log());
    });
}

/// When a client disconnects, its request is aborted on the engine that the router chose.
#[test]
fn a_stream_that_is_closed_is_aborted_where_it_is_computed() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let router = ["--router", "round-robin", "--decode-step-time", "5ms", "--metrics-address", &metrics];
    with_each(&options, &router, |_, frontend, _| {
        let body = json!({"prompt": "Hello world", "max_tokens": 4000, "ignore_eos": true});
        for _ in 0..4 {
            let mut events = frontend.stream("/v1/completions", &body);
            assert!(events.next().is_some());
        }
        wait_until("they are aborted", || sum_of(&scraped(&metrics), "vcr_requests_aborted_total") == 4.0);
        wait_until("nothing runs", || sum_of(&scraped(&metrics), "vcr_requests_running") == 0.0);
    });
}

/// If the router refuses a request, the client gets an error after which it may retry.
#[test]
fn a_router_that_refuses_is_reported_to_the_client() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let options = FrontendOptions { engines: 2, ..FrontendOptions::default() };
    let args = ["--router", "prefix_affinity(#{ max_waiting: 0 })", "--max-num-seqs", "1"]
        .into_iter()
        .chain(["--decode-step-time", "20ms", "--metrics-address", &metrics])
        .collect::<Vec<_>>();
    with_each(&options, &args, |version, frontend, _| {
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 25, "ignore_eos": true});
        let ask = || frontend.post("/v1/completions", &body);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..10).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect()
        });
        // Two requests run at once, and one more waits at each engine.
        let (served, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
        assert!(served.len() >= 2 && refused.len() >= 4, "{answers:?}");
        assert!(refused.iter().all(|answer| answer.status >= 400), "{refused:?}");
        // Older frontends do not read an engine's reason.
        let is_reported = |answer: &&vcr_tests::Answer| answer.body.to_string().contains("too much to do");
        assert!(!is_from(version, 33) || refused.iter().all(is_reported), "{refused:?}");
        wait_until("they are counted", || {
            sum_of(&scraped(&metrics), "vcr_requests_shed_total") == refused.len() as f64
        });
    });
}
