//! Options of `vcr guest`.

use std::path::PathBuf;

use clap::Args;
use vcr_guest::World;
use vcr_guest_tools::template::Language;

use crate::help::with_plain_exit_codes;

pub(crate) const GUEST_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest new my-model --world latency-model   # a project that builds and passes its test
  vcr guest build my-model                       # into my-model/dist/my-model.wasm
  vcr guest check my-model/dist/my-model.wasm    # thousands of calls, all rules
  vcr guest bench my-model/dist/my-model.wasm    # time, fuel and memory of its calls
  vcr guest inspect my-model/dist/my-model.wasm  # its world, imports and limits
  vcr guest call my-model/dist/my-model.wasm price-step '{\"step\": {\"decode-requests\": 4}}'
  vcr guest push my-model/dist/my-model.wasm oci://ghcr.io/someone/my-model:1"
);

pub(crate) const NEW_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest new my-model --world latency-model
  vcr guest new first-come --world scheduler-policy --path ~/guests/first-come
  vcr guest new my-model --world latency-model --lang python
  vcr guest new my-router --world router --lang js

Worlds: latency-model, scheduler-policy, router, autoscaler, failure-injector, token-source.
A project needs only this binary to build: the SDK and the interface are in its folder `vendor`."
);

pub(crate) const INSPECT_EXAMPLES: &str = "Examples:
  vcr guest inspect guests/dist/roofline.wasm
  vcr guest inspect guests/dist/roofline.wasm --json
  vcr guest inspect newer.wasm        # also what this build cannot run

Nothing is compiled or run: `vcr guest check` does that.

Exit codes:
  0  the file is a component, whether or not this build can run it
  2  bad usage, or a file that cannot be read or is not a component";

pub(crate) const CHECK_EXAMPLES: &str = "Examples:
  vcr guest check guests/dist/roofline.wasm              # with the example config inside
  vcr guest check guests/dist/roofline.wasm \\
      --config '{\"model\": \"llama-3.1-8b\", \"gpu\": \"h100-sxm\"}'
  vcr guest check my-model/dist/my-model.wasm --config my-model/config.json --seed 7
  vcr guest check my-model/dist/my-model.wasm --json > check.json

A check makes thousands of calls as an engine would, drawn from the seed, in the real sandbox
under the usual limits: every answer must follow the interface, and equally configured instances
must answer equally, alone, alternately, and however the host groups its calls.

Exit codes:
  0  every check passed
  1  a check failed
  2  bad usage, a file that is not a guest of this build, or a config that the guest refuses
  3  the guest failed (it trapped, used up a limit, or answered an error), or memory ran out";

pub(crate) const CALL_EXAMPLES: &str = "Examples:
  vcr guest call guests/dist/roofline.wasm price-step '{\"step\": {\"decode-requests\": 4}}'
  vcr guest call guests/dist/target-load.wasm decide '{\"pool\": {\"running-requests\": 9}}'
  vcr guest call guests/dist/prefix-affinity.wasm route --example > route.json
  vcr guest call guests/dist/prefix-affinity.wasm route @route.json
  vcr guest call my-router/dist/my-router.wasm route @calls.jsonl   # several calls, one instance

It makes a fresh instance, configures it, calls it and prints the answer as JSON, checked as in a
run. The input is an object with the function's parameters, as `vcr guest wit` names them; --example
prints one. Columns are lists of one length: '{\"workers\": {\"worker\": [0, 1], \"running-requests\":
[4, 9]}}'. Omitted columns are as long as the given ones; other omitted fields are 0, empty or none.
A list of objects, a file of them or `-` (standard input) makes one call for each object on the same
instance, with one answer a line.

Exit codes:
  0  the guest answered
  2  bad usage, not a guest of this build, a wrong input, or a config that the guest refuses
  3  the guest failed (it trapped, used up a limit, or gave an invalid answer), or memory ran out";

pub(crate) const WIT_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest wit router     # the world, with the types that all worlds share
  vcr guest wit            # all worlds

Comments are the contract: each field's unit, and its value on live targets."
);

pub(crate) const BENCH_EXAMPLES: &str = "Examples:
  vcr guest bench guests/dist/prefix-affinity.wasm
  vcr guest bench my-model/dist/my-model.wasm --config my-model/config.json --json

Makes the calls of `vcr guest check` and prints the time, fuel and memory of each function. Shipped
guests are compared with the same algorithm compiled natively. Times are medians on this machine.

Exit codes:
  0  measured
  2  bad usage, a file that is not a guest of this build, or a config that the guest refuses
  3  the guest failed (it trapped, used up a limit, or answered an error), or memory ran out";

pub(crate) const VOCABULARY_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest vocabulary tokenizer.json -o vocabulary.json
  vcr play --tokens guests/dist/json-tokens.wasm --tokens-config @vocabulary.json

It writes {\"vocabulary\": {...}, \"byte_tokens\": [...]}: the text of every token of the model but
special ones. Byte-level and SentencePiece tokenizers are supported."
);

/// Options of `vcr guest build`.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Folders of guest crates, or of a workspace of them [default: guests, or the current folder if it is a guest].
    pub(crate) paths: Vec<PathBuf>,

    /// Folder for the components [default: `dist` in the guests' workspace].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Download Debian's packages of a compiler for wasm32 into the user's cache folder if none is found.
    #[arg(long)]
    pub(crate) bootstrap: bool,

    /// Print the built guests as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `vcr guest call`.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The component.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) path: PathBuf,

    /// Function of the guest's world, such as `decide`.
    pub(crate) function: String,

    /// The parameters as JSON, @ and the name of a file with them, or - for standard input.
    #[arg(value_name = "JSON|@FILE|-", default_value = "{}")]
    pub(crate) input: String,

    /// Print an example input of the function with all fields, and make no call.
    #[arg(long)]
    pub(crate) example: bool,

    /// The guest's config: a JSON document, or the name of a file with one (an @ before it is optional) [default: the
    /// example inside the component, else {}].
    #[arg(long, value_name = "JSON|FILE")]
    pub(crate) config: Option<String>,

    /// Seed of the guest.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// Options of `vcr guest wit`.
#[derive(Debug, Args)]
pub(crate) struct WitArgs {
    /// World: latency-model, scheduler-policy, router, autoscaler, failure-injector or token-source [default: all].
    #[arg(value_parser = world)]
    pub(crate) world: Option<World>,
}

/// Options of `vcr guest vocabulary`.
#[derive(Debug, Args)]
pub(crate) struct VocabularyArgs {
    /// The tokenizer.json of a model.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) tokenizer: PathBuf,

    /// Write to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Overwrite the file.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

/// Options of `vcr guest new`.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the guest: lower-case letters, digits and hyphens, a letter first.
    pub(crate) name: String,

    /// World of the guest: latency-model, scheduler-policy, router, autoscaler, failure-injector or token-source.
    #[arg(long, value_name = "WORLD")]
    pub(crate) world: String,

    /// Language: rust, python or js.
    #[arg(long, value_name = "LANGUAGE", default_value = "rust", value_parser = language)]
    pub(crate) lang: Language,

    /// Folder of the project; must not exist [default: ./NAME].
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,
}

/// Options of `vcr guest inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The file.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) path: PathBuf,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `vcr guest check` and `vcr guest bench`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The component.
    #[arg(value_parser = crate::values::InputPath)]
    pub(crate) path: PathBuf,

    /// The guest's config: a JSON document, or the name of a file with one (an @ before it is optional) [default: the
    /// example inside the component, else {}].
    #[arg(long, value_name = "JSON|FILE")]
    pub(crate) config: Option<String>,

    /// Seed of the guest and of the calls.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

fn world(text: &str) -> Result<World, String> {
    let names = || World::ALL.map(World::name).join(", ");
    World::ALL.into_iter().find(|world| world.name() == text).ok_or_else(|| format!("expected one of {}", names()))
}

fn language(text: &str) -> Result<Language, String> {
    Language::ALL
        .into_iter()
        .find(|language| language.name() == text)
        .ok_or_else(|| "expected rust, python or js".to_owned())
}
