//! Several engines, and the coordinator of a mixture of experts.

use super::*;

fn of_two() -> LiveConfig {
    let mut config = config();
    config.identity.num_ranks = 2;
    config
}

#[test]
fn engines_of_one_process_serve_in_parallel() {
    let bench = Bench::new(of_two());
    let ranks: Vec<_> = bench.frontend.engines.iter().map(|engine| engine.data_parallel_rank).collect();
    assert_eq!(ranks, [0, 1]);
    for rank in 0..2 {
        bench.send_to(rank, add(&format!("r{rank}"), &prompt(20), 3));
    }
    let mut seen = [0, 0];
    while seen != [3, 3] {
        let outputs = bench.next();
        assert_eq!(outputs.outputs[0].request_id, format!("r{}", outputs.engine_index));
        seen[outputs.engine_index as usize] += 1;
    }
}

/// The next wave message of an engine to the coordinator. Messages with counts are skipped.
fn next_wave_message(bench: &Bench) -> EngineCoreOutputs {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(message) = bench.frontend.receive_as_coordinator(PATIENCE).expect("it works")
            && message.scheduler_stats.is_none()
        {
            return message;
        }
    }
    panic!("nothing came");
}

#[test]
fn a_request_starts_a_wave_and_its_end_ends_it() {
    let bench = Bench::with(of_two(), 1, true);
    for wave in 0..3 {
        let request = EngineCoreRequest { current_wave: wave, ..request("a", &prompt(20), params(3)) };
        bench.send_to(1, Request::Add(Box::new(request)));
        assert_eq!(next_wave_message(&bench).start_wave, Some(wave), "an idle engine announces the wave");
        bench
            .frontend
            .start_wave(StartDpWave { wave, exclude_engine_index: Some(1) }, bench.rules)
            .expect("it is sent");
        let ended = bench.collect(&["a"]).remove(0);
        assert_eq!(ended.finish, Some(FinishReason::Length));
        assert_eq!(next_wave_message(&bench).wave_complete, Some(wave));
    }
}

/// Up to 0.32, the frontend announces waves.
#[test]
fn older_lines_start_waves_themselves() {
    let mut config = of_two();
    config.identity.version = Some(VllmMinor::V0_32);
    let bench = Bench::with(config, 1, true);
    bench.send_to(0, add("a", &prompt(20), 3));
    bench.collect(&["a"]);
    let message = next_wave_message(&bench);
    assert_eq!((message.start_wave, message.wave_complete), (None, Some(0)));
}

#[test]
fn the_coordinator_hears_of_every_change_of_the_counts() {
    let mut config = of_two();
    config.identity.is_moe = Some(false);
    let bench = Bench::with(config, 1, true);
    bench.send_to(0, add("a", &prompt(20), 3));
    let ended = bench.collect(&["a"]).remove(0);
    assert_eq!(ended.finish, Some(FinishReason::Length));
    let mut running = Vec::new();
    while running.last() != Some(&0) {
        let message = bench.frontend.receive_as_coordinator(PATIENCE).expect("it works").expect("it comes");
        assert_eq!((message.start_wave, message.wave_complete), (None, None), "a dense model has no waves");
        running.push(message.scheduler_stats.expect("only counts come").num_running_reqs);
    }
    assert_eq!(running, [1, 0]);
}
