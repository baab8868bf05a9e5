use super::*;

#[test]
fn the_defaults_are_valid() {
    let config = EngineConfig::new(EngineConfigInput::default()).unwrap();
    assert_eq!(config.max_running(), 256);
    assert_eq!(config.watermark_blocks(), 0);
}

#[test]
fn every_problem_is_reported_at_once() {
    let errors = EngineConfig::new(EngineConfigInput {
        block_size: 0,
        num_gpu_blocks: 1,
        watermark: f64::NAN,
        ..EngineConfigInput::default()
    })
    .unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(errors[0].to_string(), "invalid `block_size`: expected at least 1, got 0");
}

#[test]
fn a_pool_beyond_any_accelerator_is_refused() {
    let of = |num_gpu_blocks| EngineConfig::new(EngineConfigInput { num_gpu_blocks, ..Default::default() });
    let errors = of((1 << 30) + 1).unwrap_err();
    assert_eq!(errors[0].to_string(), "invalid `num_gpu_blocks`: expected at most 1073741824, got 1073741825");
    assert!(of(1 << 30).is_ok());
}

#[test]
fn an_engine_that_cannot_hold_its_longest_request_is_refused() {
    let config = EngineConfig::new(EngineConfigInput {
        num_gpu_blocks: 11,
        max_model_len: Some(161),
        ..EngineConfigInput::default()
    })
    .unwrap();
    let errors = config.check_start_up().unwrap_err();
    assert_eq!(errors, [ConfigError::PoolBelowModelLen { model_len: 161, needed: 11, usable: 10 }]);
}

#[test]
fn reservations_between_steps_need_room_for_whole_prompts() {
    let input = EngineConfigInput { reservations: Reservations::BetweenSteps, ..EngineConfigInput::default() };
    assert!(EngineConfig::new(input.clone()).is_ok());
    let errors = EngineConfig::new(EngineConfigInput { scheduler_reserve_full_isl: false, ..input }).unwrap_err();
    assert!(errors[0].to_string().starts_with("`reservations` needs `scheduler_reserve_full_isl`: "), "{errors:?}");
}

#[test]
fn without_chunking_the_budget_must_hold_the_longest_prompt() {
    let errors = EngineConfig::new(EngineConfigInput {
        enable_chunked_prefill: false,
        max_model_len: Some(10_000),
        ..EngineConfigInput::default()
    })
    .unwrap_err();
    assert_eq!(errors, [ConfigError::BudgetBelowModelLen { tokens: 8192, model_len: 10_000 }]);
}
