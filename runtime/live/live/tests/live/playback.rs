//! Answers from a capture.

use vcr_core::Drafter;
use vcr_record::playback::{CaptureIndex, MatchBy, Playback, Unmatched};
use vcr_trace::capture::{CaptureMeta, ExtraKeys, Holds, MediaKey, RequestRecord};

use super::*;

const MS: u64 = 1_000_000;

/// A record of a prompt. `outputs` are times since the arrival and numbers of tokens.
fn record(prompt: &[u32], outputs: &[(u64, u32)], finish: &str) -> RequestRecord {
    let hasher = CaptureIndex::of_records(CaptureMeta::default(), Vec::new()).hasher();
    let chain = hasher.chain(prompt, &ExtraKeys::default());
    let num_tokens: u32 = outputs.iter().map(|(_, tokens)| tokens).sum();
    let first = outputs.first();
    RequestRecord {
        prompt_tokens: prompt.len() as u32,
        cached_tokens: 5,
        block_hashes: chain.blocks,
        prompt_hash: Some(chain.whole),
        output_tokens: num_tokens,
        // Other prompts have other tokens.
        output_token_ids: Some((0..num_tokens).map(|index| prompt[0] * 100 + index).collect()),
        ttft_ns: first.map(|(at_ns, _)| *at_ns),
        first_tokens: first.map(|(_, tokens)| *tokens),
        gap_ns: outputs.windows(2).map(|pair| pair[1].0 - pair[0].0).collect(),
        gap_tokens: Some(outputs.iter().skip(1).map(|(_, tokens)| *tokens).collect()),
        finish_reason: Some(finish.to_owned()),
        end_ns: Some(outputs.last().map_or(10 * MS, |(at_ns, _)| *at_ns)),
        ..RequestRecord::default()
    }
}

fn replaying(records: Vec<RequestRecord>, times: bool, policy: Unmatched) -> (Bench, Arc<Playback>) {
    let captures = CaptureIndex::of_records(CaptureMeta::default(), records);
    let playback = Arc::new(Playback::new(captures, MatchBy::Content, policy).expect("records have hashes"));
    let settings = PlaybackSettings { playback: Arc::clone(&playback), tokens: true, times };
    (Bench::new(LiveConfig { playback: Some(settings), ..config() }), playback)
}

#[test]
fn recorded_tokens_come_back_in_steps_of_the_model() {
    let prompts = [prompt(20), vec![7; 9]];
    let records = vec![record(&prompts[0], &[(0, 3)], "stop"), record(&prompts[1], &[(0, 2), (1, 2)], "length")];
    let (bench, playback) = replaying(records, false, Unmatched::Random);
    // Stop conditions of the request do not change the recorded answer.
    let params = SamplingParams { stop_token_ids: Some(vec![101]), eos_token_id: Some(100), ..params(50) };
    bench.send(Request::Add(Box::new(request("a", &prompts[0], params))));
    bench.add("b", &prompts[1], 50);
    let ended = bench.collect(&["a", "b"]);
    assert_eq!((ended[0].tokens.as_slice(), ended[0].finish), (&[100, 101, 102][..], Some(FinishReason::Stop)));
    assert_eq!(ended[0].outputs.len(), 3, "the model's steps give one token each");
    assert_eq!(ended[0].outputs[2].stop_reason, None, "as recorded");
    assert_eq!(ended[1].tokens, [700, 701, 702, 703]);
    assert_eq!(playback.report().counts.exact, 2);
    assert_eq!(playback.report().unused, 0);
}

/// Prompts with equal tokens are distinguished by the identifiers of their images, also in older captures, which lack
/// the positions of images.
#[test]
fn prompts_with_images_find_their_own_records() {
    let tokens = prompt(40);
    for mm_items in [true, false] {
        let meta = CaptureMeta { holds: Holds { mm_items, ..Holds::default() }, ..CaptureMeta::default() };
        let hasher = CaptureIndex::of_records(meta.clone(), Vec::new()).hasher();
        let answered = |image: &str, token: u32| {
            let media = [MediaKey { identifier: image, offset: 20 }];
            let chain = hasher.chain(&tokens, &ExtraKeys { media: &media, ..ExtraKeys::default() });
            let (block_hashes, prompt_hash) = (chain.blocks, Some(chain.whole));
            let output_token_ids = Some(vec![token; 2]);
            RequestRecord { block_hashes, prompt_hash, output_token_ids, ..record(&tokens, &[(0, 2)], "stop") }
        };
        let captures = CaptureIndex::of_records(meta, vec![answered("cat", 7), answered("dog", 8)]);
        let playback = Arc::new(Playback::new(captures, MatchBy::Content, Unmatched::Error).expect("hashes"));
        let settings = PlaybackSettings { playback: Arc::clone(&playback), tokens: true, times: false };
        let bench = Bench::new(LiveConfig { playback: Some(settings), ..config() });
        for (id, image, expected) in [("a", "dog", 8), ("b", "cat", 7)] {
            let feature = MmFeature {
                modality: "image".to_owned(),
                identifier: image.to_owned(),
                mm_hash: Some("of the processed input".to_owned()),
                mm_position: PlaceholderRange { offset: 20, length: 10, ..PlaceholderRange::default() },
                ..MmFeature::default()
            };
            let request = EngineCoreRequest { mm_features: Some(vec![feature]), ..request(id, &tokens, params(9)) };
            bench.send(Request::Add(Box::new(request)));
            assert_eq!(bench.collect(&[id])[0].tokens, [expected; 2], "{image}, with places: {mm_items}");
        }
        assert_eq!(playback.report().counts.exact, 2);
    }
}

/// With groups of layers, and drafters with KV: the tokens and the ends equal the capture's. The prefix hits are
/// those of the playing engine.
#[test]
fn recorded_tokens_come_back_from_engines_with_groups_and_drafters() {
    let groups = || ["full", "sliding_window:64"].map(|kind| kind.parse().expect("a group of layers")).to_vec();
    let plain = || EngineConfigInput { max_model_len: Some(4096), ..EngineConfigInput::default() };
    let drafting = |drafter| EngineConfigInput { drafter, num_speculative_tokens: 3, ..plain() };
    let engines = [
        EngineConfigInput { kv_cache_groups: groups(), ..plain() },
        drafting(Drafter::DraftModel),
        EngineConfigInput { kv_cache_groups: groups(), ..drafting(Drafter::Eagle) },
    ];
    for engine in engines {
        let prompts = [prompt(200), prompt(200), vec![7; 90]];
        let lengths = [12, 9, 30];
        let records =
            prompts.iter().zip(lengths).map(|(prompt, tokens)| record(prompt, &[(0, tokens)], "stop")).collect();
        let captures = CaptureIndex::of_records(CaptureMeta::default(), records);
        let playback = Playback::new(captures, MatchBy::Content, Unmatched::Error).expect("records have hashes");
        let playback = Arc::new(playback);
        let settings = PlaybackSettings { playback: Arc::clone(&playback), tokens: true, times: false };
        let described = format!("{:?}, {:?}", engine.kv_cache_groups, engine.drafter);
        let bench = Bench::new(LiveConfig { engine: engine_config(engine), playback: Some(settings), ..config() });
        let mut hits = Vec::new();
        for (index, (prompt, tokens)) in prompts.iter().zip(lengths).enumerate() {
            let id = format!("r{index}");
            bench.add(&id, prompt, 50);
            let ended = bench.collect(&[&id]).remove(0);
            let expected: Vec<u32> = (0..tokens).map(|token| prompt[0] * 100 + token).collect();
            assert_eq!((ended.tokens, ended.finish), (expected, Some(FinishReason::Stop)), "{described}");
            let stats = ended.outputs.iter().find_map(|output| output.prefill_stats.as_ref()).expect("a first output");
            hits.push(stats.num_local_cached_tokens);
        }
        assert!(hits[0] == 0 && hits[1] >= 176 && hits[2] == 0, "{described}: {hits:?}");
        assert_eq!((playback.report().counts.exact, playback.report().unused), (3, 0), "{described}");
    }
}

#[test]
fn a_request_that_wants_less_gets_less() {
    let (bench, _) = replaying(vec![record(&prompt(20), &[(0, 9)], "stop")], false, Unmatched::Random);
    bench.add("a", &prompt(20), 4);
    let one = bench.collect(&["a"]).remove(0);
    assert_eq!((one.tokens.as_slice(), one.finish), (&[100, 101, 102, 103][..], Some(FinishReason::Length)));
}

#[test]
fn recorded_times_of_many_requests_do_not_disturb_each_other() {
    let prompts = [vec![1; 20], vec![2; 20]];
    let records = vec![
        record(&prompts[0], &[(10 * MS, 1), (300 * MS, 4), (310 * MS, 1)], "stop"),
        record(&prompts[1], &[(20 * MS, 2), (30 * MS, 1), (40 * MS, 1), (305 * MS, 1)], "length"),
    ];
    let (bench, _) = replaying(records, true, Unmatched::Random);
    bench.add("a", &prompts[0], 50);
    bench.add("b", &prompts[1], 50);
    let mut order = Vec::new();
    let mut num_ended = 0;
    while num_ended < 2 {
        for output in bench.next().outputs {
            num_ended += usize::from(output.finish_reason.is_some());
            if let Some(stats) = &output.prefill_stats {
                assert_eq!(stats.num_local_cached_tokens, 5, "as recorded");
            }
            order.push((output.request_id, output.new_token_ids.len()));
        }
    }
    let order: Vec<(&str, usize)> = order.iter().map(|(id, tokens)| (id.as_str(), *tokens)).collect();
    assert_eq!(order, [("a", 1), ("b", 2), ("b", 1), ("b", 1), ("a", 4), ("b", 1), ("a", 1)]);
    bench.wait_for("all is over", |snapshot| snapshot.num_running + snapshot.num_waiting == 0);
}

#[test]
fn aborted_requests_come_back_as_such() {
    let prompts = [vec![1; 20], vec![2; 20], vec![3; 20]];
    for times in [false, true] {
        let records = vec![
            record(&prompts[0], &[(MS, 2)], "abort"),
            record(&prompts[1], &[], "abort"),
            record(&prompts[2], &[(MS, 1)], "error"),
        ];
        let (bench, _) = replaying(records, times, Unmatched::Random);
        for (id, prompt) in ["a", "b", "c"].into_iter().zip(&prompts) {
            bench.add(id, prompt, 50);
        }
        let ended = bench.collect(&["a", "b", "c"]);
        let ends: Vec<_> = ended.iter().map(|one| (one.tokens.len(), one.finish)).collect();
        let expected = [(2, Some(FinishReason::Abort)), (0, Some(FinishReason::Abort)), (1, Some(FinishReason::Error))];
        assert_eq!(ends, expected, "recorded times: {times}");
        assert!(ended[0].outputs.last().expect("it ended").new_token_ids.is_empty(), "its end comes apart");
    }
}

#[test]
fn a_request_can_be_aborted_between_recorded_times() {
    let (bench, _) =
        replaying(vec![record(&prompt(20), &[(0, 1), (3_600_000 * MS, 1)], "stop")], true, Unmatched::Random);
    bench.add("a", &prompt(20), 50);
    assert_eq!(bench.next().outputs[0].new_token_ids, [100]);
    bench.send(Request::Abort(vec!["a".to_owned()]));
    bench.wait_for("it is gone", |snapshot| snapshot.num_running == 0 && snapshot.counters.aborted == 1);
    bench.add("b", &prompt(20), 3);
    assert_eq!(bench.collect(&["b"])[0].tokens.len(), 3, "the record is used up, so the engine answers");
}

#[test]
fn what_is_not_in_the_capture_fails_where_it_must() {
    let (bench, playback) = replaying(vec![record(&prompt(40), &[(0, 1)], "stop")], true, Unmatched::Error);
    let mut other = prompt(40);
    other[20] = 0;
    bench.add("a", &other, 5);
    let one = bench.collect(&["a"]).remove(0);
    let error = one.outputs[0].error.as_ref().expect("it says why");
    assert_eq!(error.code, "playback_mismatch");
    assert!(error.message.contains("number 1, from token 16"), "{}", error.message);
    assert_eq!(bench.collect_one("b", &prompt(40)), Some(FinishReason::Stop), "others are served");
    assert_eq!(playback.report().counts.unmatched, 1);
}

#[test]
fn a_strict_replay_ends_with_the_first_request_that_is_not_in_it() {
    let records = vec![record(&prompt(40), &[(0, 1), (3_600_000 * MS, 1)], "stop")];
    let (mut bench, playback) = replaying(records, true, Unmatched::Fail);
    bench.add("under way", &prompt(40), 5);
    assert_eq!(bench.next().outputs[0].new_token_ids, [100]);
    bench.add("a", &prompt(39), 5);
    assert_eq!(bench.collect(&["a"])[0].finish, Some(FinishReason::Error), "it has a reason");
    // As with vLLM's engine, waiting clients are told that the engine has failed.
    let last = bench.frontend.receive(PATIENCE).expect("it works").expect("it comes");
    assert_eq!(last.decode(), Ok(EngineMessage::Dead));
    bench.engines.take().expect("they run").wait().expect("they end by themselves");
    assert!(playback.report().has_failed);
}

/// The prompt has three records. A request for fifty tokens gets the record with fifty.
#[test]
fn among_equal_prompts_the_parameters_decide() {
    let of = |tokens: u32, seed: u64| RequestRecord {
        params: serde_json::json!({"max_tokens": tokens, "seed": seed, "temperature": 0.5})
            .as_object()
            .expect("an object")
            .clone(),
        ..record(&prompt(20), &[(0, tokens)], "length")
    };
    let (bench, playback) = replaying(vec![of(5, 1), of(50, 2), of(7, 3)], true, Unmatched::Fail);
    for (id, tokens, seed) in [("a", 50, 2_u64), ("b", 7, 3), ("c", 50, 4)] {
        let params = SamplingParams { seed: Some(seed.into()), temperature: 0.5, ..params(tokens) };
        bench.send(Request::Add(Box::new(request(id, &prompt(20), params))));
    }
    let ended = bench.collect(&["a", "b", "c"]);
    let lengths: Vec<usize> = ended.iter().map(|one| one.tokens.len()).collect();
    assert_eq!(lengths, [50, 7, 5], "the last one gets what is left");
    let counts = playback.report().counts;
    assert_eq!((counts.exact, counts.other_params), (3, 1));
}

impl Bench {
    fn collect_one(&self, id: &str, prompt: &[u32]) -> Option<FinishReason> {
        self.add(id, prompt, 50);
        self.collect(&[id])[0].finish
    }
}

/// The completions of one call are requests with the same prompt. Their IDs are their index and an ID that the
/// frontend chose.
#[test]
fn completions_of_one_call_get_their_records_in_order() {
    let child = |first_token: u32| RequestRecord {
        output_token_ids: Some(vec![first_token, 2]),
        ..record(&prompt(20), &[(0, 1), (1, 1)], "length")
    };
    let (bench, playback) = replaying(vec![child(10), child(11)], false, Unmatched::Fail);
    for id in ["0_cmpl-new", "1_cmpl-new"] {
        let params = SamplingParams { n: 2, ..params(50) };
        bench.send(Request::Add(Box::new(request(id, &prompt(20), params))));
    }
    let ended = bench.collect(&["0_cmpl-new", "1_cmpl-new"]);
    assert_eq!((ended[0].tokens.as_slice(), ended[1].tokens.as_slice()), (&[10, 2][..], &[11, 2][..]));
    assert_eq!(playback.report().counts.exact, 2);
}

/// A diffusion model outputs many tokens at once.
#[test]
fn blocks_of_many_tokens_come_back_whole() {
    let outputs = [(0, 64), (1, 64), (2, 64)];
    let (bench, _) = replaying(vec![record(&prompt(20), &outputs, "length")], true, Unmatched::Fail);
    bench.add("a", &prompt(20), 500);
    let one = bench.collect(&["a"]).remove(0);
    let lengths: Vec<usize> = one.outputs.iter().map(|output| output.new_token_ids.len()).collect();
    assert_eq!(lengths, [64, 64, 64]);
    assert_eq!(one.tokens, (100..292).collect::<Vec<u32>>());
}
