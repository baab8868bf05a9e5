//! `vcr plan tune`: the flags of one deployment, as a space of one family with a fixed number of replicas.

use std::num::NonZeroU32;

use vcr_model::vllm_args::human_readable_int;

use crate::plan::args::{QuestionArgs, TuneArgs};
use crate::plan::question;
use crate::plan::space::{Given, HOST_GIB, Space, given, misspelt, without, without_switches};
use crate::refusal::Refusal;

/// Flags that are varied in any case, with their values in a space.
const SEQS: (&str, &str) = ("max_num_seqs", "--max-num-seqs");
const TOKENS: (&str, &str) = ("max_num_batched_tokens", "--max-num-batched-tokens");
/// Flags that a space may vary.
const OTHERS: [(&str, &str); 2] = [("kv_cache_dtype", "--kv-cache-dtype"), ("host_gib_per_gpu", HOST_GIB)];
const SWITCHES: [&str; 2] = ["--enable-prefix-caching", "--no-enable-prefix-caching"];

/// The question and the space: the flags of the command line, except those that `--space` lists.
pub(crate) fn question(args: &TuneArgs) -> Result<(QuestionArgs, Space), Refusal> {
    let mut question = args.question.clone();
    let (mut space, stated) =
        question.space.take().map(|text| question::stated(&text)).transpose()?.unwrap_or_default();
    let given = given(&args.vllm_args)?;
    if !question.model.is_empty() {
        return Err(Refusal::input("--model: the model is that of --vllm-args"));
    }
    if let Some(problem) = misspelt(&given.others, question.vllm_minor.as_deref()) {
        return Err(Refusal::input(format!("invalid --vllm-args: {problem}")));
    }
    let replicas = args.replicas.get();
    check_fixed(&space, &stated, &given, replicas)?;
    question.model = vec![given.model];
    question.max_model_len = question.max_model_len.or(given.max_model_len);
    space.prefill_decode = Vec::new();
    space.tensor_parallel = vec![given.tensor_parallel];
    space.pipeline_parallel = vec![given.pipeline_parallel];
    space.data_parallel = vec![given.data_parallel];
    space.aggregated = true;
    space.min_replicas = replicas;
    space.max_replicas = Some(replicas);
    let is_stated = |name: &str| stated.iter().any(|stated| stated == name);
    for ((name, flag), values) in [(SEQS, &mut space.max_num_seqs), (TOKENS, &mut space.max_num_batched_tokens)] {
        if let Some(value) = size_after(&given.others, flag)?.filter(|_| !is_stated(name)) {
            *values = vec![value];
        }
    }
    let mut others = without(&given.others, &[SEQS.1, TOKENS.1]);
    for (_, flag) in OTHERS.iter().filter(|(name, _)| is_stated(name)) {
        others = without(&others, &[flag]);
    }
    if is_stated("prefix_caching") {
        others = without_switches(&others, &SWITCHES);
    }
    space.arguments = space.arguments.iter().map(|text| format!("{others} {text}").trim().to_owned()).collect();
    if question.max_gpus.is_none() {
        question.max_gpus = NonZeroU32::new(u32::MAX);
    }
    Ok((question, space))
}

/// Refuses values of a space that would have no effect.
fn check_fixed(space: &Space, stated: &[String], given: &Given, replicas: u32) -> Result<(), Refusal> {
    let fixed = [
        ("tensor_parallel", space.tensor_parallel == [given.tensor_parallel], "--vllm-args states it"),
        ("pipeline_parallel", space.pipeline_parallel == [given.pipeline_parallel], "--vllm-args states it"),
        ("data_parallel", space.data_parallel == [given.data_parallel], "--vllm-args states it"),
        ("expert_parallel", space.expert_parallel == [false], "--vllm-args states it"),
        ("min_replicas", space.min_replicas == replicas, "--replicas states it"),
        ("max_replicas", space.max_replicas == Some(replicas), "--replicas states it"),
        ("aggregated", space.aggregated, "`vcr plan` tries it"),
        ("prefill_decode", space.prefill_decode.is_empty(), "`vcr plan` tries it"),
    ];
    let ignored = fixed.iter().find(|(name, is_same, _)| !is_same && stated.iter().any(|stated| stated == name));
    match ignored {
        Some((name, _, where_else)) => {
            Err(Refusal::input(format!("invalid --space: `{name}`: expected values of flags; {where_else}")))
        }
        None => Ok(()),
    }
}

/// The number after a flag, in vLLM's notation.
fn size_after(flags: &str, name: &str) -> Result<Option<u32>, Refusal> {
    let Some(word) = flags.split_whitespace().skip_while(|word| *word != name).nth(1) else { return Ok(None) };
    let size = human_readable_int(word).ok().and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0);
    let invalid = || Refusal::input(format!("invalid --vllm-args: `{name} {word}`: expected a number of at least 1"));
    size.map(Some).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::args::SearchArgs;

    fn asked(command: &str, space: &str) -> Result<Space, String> {
        let search = SearchArgs {
            budget: None,
            exhaustive: false,
            out: None,
            force: false,
            json: false,
            full: false,
            quiet: false,
            threads: None,
            on: None,
        };
        let space = Some(space.to_owned()).filter(|space| !space.is_empty());
        let question = QuestionArgs { space, ..QuestionArgs::default() };
        let replicas = NonZeroU32::MIN;
        let args = TuneArgs { vllm_args: format!("vllm serve m {command}"), replicas, question, search };
        super::question(&args).map(|(_, space)| space).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_space_replaces_flags_of_the_command_line() {
        let kept = asked("-tp 2 --max-num-seqs 256 --max-num-batched-tokens 8k", "").expect("it is a question");
        assert_eq!(
            (kept.tensor_parallel, kept.max_num_seqs, kept.max_num_batched_tokens),
            (vec![2], vec![256], vec![8000])
        );
        let tried = asked("--max-num-seqs 256 --block-size 32", "{max-num-seqs: [32, 64]}").expect("it is a question");
        assert_eq!((tried.max_num_seqs, tried.arguments), (vec![32, 64], vec!["--block-size 32".to_owned()]));
        let flags = "--no-enable-prefix-caching --kv-cache-dtype fp8 --block-size 32";
        let tried = asked(flags, "{prefix_caching: [true, false], kv_cache_dtype: auto}").expect("it is a question");
        assert_eq!((tried.prefix_caching, tried.arguments), (vec![true, false], vec!["--block-size 32".to_owned()]));
        assert_eq!(asked(flags, "").expect("it is a question").arguments, [flags]);
    }

    #[test]
    fn values_without_effect_and_unknown_flags_are_refused() {
        for (command, space, words) in [
            (
                "-tp 2",
                "{tensor_parallel: [1, 2]}",
                "`tensor_parallel`: expected values of flags; --vllm-args states it",
            ),
            ("", "{max_replicas: 3}", "`max_replicas`: expected values of flags; --replicas states it"),
            ("", "{prefill_decode: ['1:1']}", "`prefill_decode`: expected values of flags; `vcr plan` tries it"),
            ("--no-such 3", "", "invalid --vllm-args: unknown argument `--no-such`"),
            ("--max-num-seqs many", "", "`--max-num-seqs many`: expected a number of at least 1"),
        ] {
            let refused = asked(command, space).expect_err(command);
            assert!(refused.contains(words), "{refused}");
        }
        assert!(asked("-tp 2", "{tensor_parallel: 2, prefill_decode: []}").is_ok(), "it is as the command line states");
    }
}
