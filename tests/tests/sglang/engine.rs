//! Decisions of SGLang's scheduler.

use std::thread;

use crate::{generate, metric, prompt, serve};

/// With reserves that are too small, all requests are admitted and some are later retracted. vLLM's scheduler has
/// no such option, and would not preempt requests here that it admitted with full reserves.
#[test]
fn requests_are_retracted_when_the_reserve_was_too_small() {
    let serve = serve(600, &["--schedule-conservativeness", "0.01", "--decode-step-time", "1ms"]);
    let answers = thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|number| {
                scope.spawn({
                    let serve = &serve;
                    move || generate(serve, &prompt(number, 40), 150)
                })
            })
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect::<Vec<_>>()
    });
    assert!(answers.iter().all(|answer| answer["meta_info"]["completion_tokens"] == 150));
    assert!(metric(serve.address(), "sglang:num_retracted_requests_total") > 0.0);
    // Despite retractions, the same prompts have the same answers.
    let calm = crate::serve(6000, &[]);
    for (number, answer) in (0..).zip(&answers) {
        assert_eq!(answer["output_ids"], generate(&calm, &prompt(number, 40), 150)["output_ids"]);
    }
}

/// A prompt that is longer than a chunk is computed in several passes, during which nothing decodes.
#[test]
fn long_prompts_are_computed_in_chunks() {
    let latency = r#"fixed(#{ prefill: "20ms", decode: "1ms" })"#;
    let serve = serve(6000, &["--chunked-prefill-size", "100", "--latency", latency]);
    let answer = generate(&serve, &prompt(1, 1000), 1);
    let latency = answer["meta_info"]["e2e_latency"].as_f64().expect("it has a latency");
    assert!(latency >= 0.2, "ten chunks of 20 ms: {latency}");
}
