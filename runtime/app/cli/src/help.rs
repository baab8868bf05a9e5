//! The ends of help texts: examples and exit codes.

use crate::exit::Exit;

/// Appends all exit codes to a help text. A macro, because `concat!` needs literals.
macro_rules! with_exit_codes {
    ($text:literal) => {
        concat!(
            $text,
            "\n\nExit codes:
  0  every assertion passed
  1  an assertion failed
  2  bad usage, script or input file
  3  a guest or an engine failed
  124, 130, 143  ended by --timeout, SIGINT or SIGTERM; results so far were written, marked partial"
        )
    };
}

pub(crate) fn exit_codes() -> String {
    let lines = Exit::ALL.map(|exit| format!("\n  {}  {}", exit as u8, exit.meaning()));
    format!("Exit codes:{}", lines.concat())
}

/// Appends the exit codes of commands without assertions.
macro_rules! with_plain_exit_codes {
    ($text:literal) => {
        concat!($text, "\n\nExit codes:\n  0  success\n  2  bad usage or input file")
    };
}

/// Appends the exit codes of a command that tries guests.
macro_rules! with_check_exit_codes {
    ($text:literal) => {
        concat!(
            $text,
            "\n\nExit codes:\n  0  success\n  2  bad usage, script or input file\n  3  a guest or an engine failed"
        )
    };
}

/// Appends the exit codes of commands that compare.
macro_rules! with_comparison_exit_codes {
    ($text:literal, $equal:literal, $different:literal) => {
        concat!(
            $text,
            "\n\nExit codes:\n  0  ",
            $equal,
            "\n  1  ",
            $different,
            "\n  2  bad usage, or an input that cannot be read or is out of scope"
        )
    };
}

/// Appends the exit codes of commands that simulate without assertions.
macro_rules! with_simulation_exit_codes {
    ($text:literal) => {
        concat!(
            $text,
            "\n\nExit codes:
  0  success
  2  bad usage or input file
  3  a guest or an engine failed
  124, 130, 143  ended by --timeout, SIGINT or SIGTERM; results so far were written, marked partial"
        )
    };
}

pub(crate) use {with_check_exit_codes, with_comparison_exit_codes, with_plain_exit_codes, with_simulation_exit_codes};

#[cfg(feature = "serve")]
pub(crate) const SERVE_EXAMPLES: &str = "Examples:
  vcr serve                             # the model `sim` on 127.0.0.1:8000, nothing else needed
  curl -N localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"stream\": true}'
  vcr serve --port 0 --inter-token-latency 10ms --time-to-first-token 200ms
  vcr serve ~/models/Qwen3-0.6B --served-model-name qwen --max-num-seqs 64
  vcr serve --latency 'roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })'
  vcr serve --fault error:rate=0.05,after=10 --fault crash:at=60s,restart=5s
  vcr serve --data-parallel-size 4 --router prefix-affinity --enable-kv-cache-events
  vcr serve --config serve.yaml --show-config

Exit codes:
  0  stopped by a signal, after the requests under way; 124 if it was --timeout
  2  bad usage, a model that cannot be read, or an address that cannot be used
  3  a guest or an engine failed";

#[cfg(feature = "live")]
pub(crate) const PLAY_EXAMPLES: &str = "Examples:
  vllm-rs serve MODEL --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 \\
      --data-parallel-size 1 --data-parallel-size-local 0 &
  vcr play --handshake-address tcp://127.0.0.1:29550 --inter-token-latency 10ms
  vcr play --time-to-first-token 200ms --inter-token-latency 10ms --max-num-seqs 64
  vcr play --latency 'roofline(#{ model: \"llama-3.1-8b\", gpu: \"h100-sxm\" })'
  vcr play --latency guests/dist/thermal.wasm --latency-config @guests/thermal/config.json
  vcr play --tokens guests/dist/json-tokens.wasm --tokens-config @vocabulary.json
  vcr play --data-parallel-size 4 --router prefix-affinity
  vcr play --data-parallel-size 4 --router guests/dist/prefix-affinity.wasm \\
      --router-config '{\"max_waiting\": 64}' --router-fallback least-loaded
  vcr play --enable-kv-cache-events --kv-events-endpoint 'tcp://*:5557' --num-gpu-blocks 4096
  vcr play --kv-transfer tcp --kv-shape 32x8x128 --num-gpu-blocks 1024 --side-channel-port 5600
  vcr play --kv-transfer nixl --nixl-model meta-llama/Llama-3.1-8B --vllm-version 0.33.0
  vcr play --fault error:rate=0.05,after=10 --fault stall:for=2s,at=30s
  vcr play --metrics-address 0.0.0.0:9091 --admin-address 127.0.0.1:9090
  vcr play --playback day.jsonl.zst --strict --playback-report report.json
  vcr play --playback day.jsonl.zst --playback-times model --inter-token-latency 10ms

Exit codes:
  0  stopped by a signal, after the requests under way; 124 if it was --timeout
  1  with --strict: a request was not in the capture
  2  bad usage, or an address that cannot be used
  3  a guest or an engine failed";

pub(crate) const RECORD_EXAMPLES: &str = "Examples:
  vllm-rs serve MODEL --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 \\
      --data-parallel-size 1 --data-parallel-size-local 0 &
  vcr record --out day.jsonl.zst --model llama-3.1-8b --gpu h100-sxm &
  vllm serve MODEL --headless --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29560
  vcr record --out day.jsonl.gz --rotate-size 1GB --rotate-time 10m
  vcr record --out kv.jsonl --kv-events tcp://127.0.0.1:5557
  vcr record --out far.jsonl --engine-handshake tcp://0.0.0.0:29560 --bind-host 10.0.0.5
  vcr record --out chats.jsonl.zst --upstream http://localhost:8000/v1 --port 8001

What a capture discloses: lengths and times of requests, sampling parameters with stop texts,
schemas and the like, names of adapters and sessions, and hashes of every block of each prompt.
The hashes confirm a guessed prompt. Texts can be read only with --record-tokens (answers) and
--record-prompts. With --upstream, texts are recorded; keys and cookies are not. Details:
docs/reference/record.md.

Exit codes:
  0  stopped by a signal; every message was recorded or counted as lost; 124 if it was --timeout
  2  bad usage, or an address or a file that cannot be used
  3  the capture could not be written to its end, or the sockets failed";

pub(crate) const RUN_EXAMPLES: &str = with_exit_codes!(
    "Examples:
  vcr run scenarios/pd_burst.rhai
  vcr run scenarios/pd_burst.rhai -e burst=400 --seed 7
  vcr run scenarios/pd_burst.rhai --json > report.json
  vcr run scenarios/pd_burst.rhai --out out    # report, requests, steps, Perfetto trace
  vcr run scenarios/pd_burst.rhai --out out --files report,requests
  vcr run scenarios/pd_burst.rhai --requests requests.jsonl --timeout 10m
  vcr run scenarios/same_everywhere.rhai --target live              # engines in real time
  vcr run scenarios/same_everywhere.rhai --target http://host:8000  # any server of OpenAI's API
  vcr run scenarios/pd_burst.rhai --baseline out --max-regression ttft.p99=5%
  vcr run bug.vcr                              # a pack: compare with the packed result
  vcr run scenarios/pd_burst.rhai --pack-on-failure=bug.vcr
  vcr run capacity.rhai --uncertainty 200      # intervals, with a fitted latency model
  vcr run scenarios/failure_drill.rhai --search rate=8..64   # highest rate without failures
  vcr run scenarios/failure_drill.rhai --sweep rate=8..32..8 --sweep retries=0,2 \\
      --sweep-out grid.csv
  vcr run scenarios/failure_drill.rhai --repeat 8            # with eight seeds
  vcr run scenarios/failure_drill.rhai scenarios/fair_share.rhai --jobs 2"
);

pub(crate) const BUILD_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr guest build                     # every guest of ./guests, into guests/dist
  vcr guest build guests/roofline     # one guest
  vcr guest build my-guest --out .
  vcr guest build guests/python/per-token        # a guest in Python, by componentize-py
  vcr guest build guests/javascript/least-loaded # a guest in JavaScript, by componentize-js

The compiler is the first of these that works: an installed wasm32 target, one that rustup can
add, the toolchain's own library source (rust-src), or Debian's rustc-web packages, which
--bootstrap downloads once and unpacks into the user's cache folder; nothing is installed.
VCR_GUEST_TOOLCHAIN picks one: installed, rustup, rust-src or debian."
);

pub(crate) const INSPECT_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect summarize capture.jsonl # requests, lengths and times
  vcr inspect conform recordings/     # differences from the decisions of a recorded engine
  vcr inspect steps out --engine decode/0 --step 200    # contents of step 200, and the reasons",
    "success: no difference was found",
    "a difference was found"
);

pub(crate) const CONFORM_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect conform recordings/
  vcr inspect conform recordings/fcfs-preempt captures/burst
  vcr inspect conform recordings/ --json > conform.json

A recording is a folder with `steps.jsonl`, `requests.jsonl`, and `config.json` (of the
scheduler alone) or `engine.json` (of a live engine). docs/reference/inspect-steps.md
says how to make one.",
    "every decision of every recording is the same",
    "a decision differs"
);

pub(crate) const STEPS_EXAMPLES: &str = with_comparison_exit_codes!(
    "Examples:
  vcr inspect steps out                                # steps.jsonl of `vcr run --out out`
  vcr inspect steps out --engine decode/1 --from 300 --limit 20
  vcr inspect steps recordings/fcfs-preempt --step 200
  vcr inspect steps out --diff other-out               # the first step that differs",
    "success; with --diff: no difference was found",
    "with --diff: a difference was found"
);

pub(crate) const COMPLETIONS_EXAMPLES: &str = with_plain_exit_codes!(
    "Examples:
  vcr completions bash > ~/.local/share/bash-completion/completions/vcr
  vcr completions zsh > ~/.zfunc/_vcr
  vcr completions fish > ~/.config/fish/completions/vcr.fish"
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the exit codes in the help of a command and its subcommands.
    fn add_exit_codes(command: &clap::Command, found: &mut Vec<u8>) {
        let texts = [command.get_after_help(), command.get_after_long_help()];
        let texts = texts.into_iter().flatten().map(ToString::to_string).collect::<String>();
        let codes = texts.split_once("Exit codes:\n").map_or("", |(_, codes)| codes);
        for line in codes.lines().filter_map(|line| line.strip_prefix("  ")) {
            let codes = line.split_once("  ").map_or("", |(codes, _)| codes).split(", ");
            found.extend(codes.map(|code| code.parse::<u8>().unwrap_or_else(|_| panic!("no code: {line}"))));
        }
        command.get_subcommands().for_each(|below| add_exit_codes(below, found));
    }

    #[test]
    fn exit_codes_of_commands_are_those_of_all() {
        let mut command = crate::args::command();
        command.build();
        let mut found = Vec::new();
        add_exit_codes(&command, &mut found);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, Exit::ALL.map(|exit| exit as u8));
    }

    /// Collects the help lines of a command and its subcommands that are too long.
    fn add_wrapped(command: &clap::Command, found: &mut Vec<String>) {
        let texts = [command.get_before_help(), command.get_after_help()].into_iter().flatten();
        let lines: Vec<String> =
            texts.flat_map(|text| text.to_string().lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        found.extend(lines.into_iter().filter(|line| line.chars().count() > 100));
        command.get_subcommands().for_each(|below| add_wrapped(below, found));
    }

    /// clap adds options without a heading to the preceding group's heading.
    #[test]
    #[cfg(feature = "serve")]
    fn the_page_has_its_own_options_only() {
        let mut command = crate::args::command();
        command.build();
        for name in ["serve", "play", "record"] {
            let command = command.find_subcommand(name).expect("a command");
            let is_of_page = |arg: &&clap::Arg| arg.get_help_heading() == Some("Page at /_vcr/");
            let of_page: Vec<_> = command.get_arguments().filter(is_of_page).filter_map(clap::Arg::get_long).collect();
            assert_eq!(of_page, ["ui-address", "no-ui"], "{name}");
        }
    }

    /// A wrapped example could not be copied, because a line break would be inside its quoted JSON.
    #[test]
    fn examples_and_notes_fit_the_lines_of_the_help() {
        let mut command = crate::args::command();
        command.build();
        let mut found = Vec::new();
        add_wrapped(&command, &mut found);
        assert!(found.is_empty(), "longer than a line of the help:\n{}", found.join("\n"));
    }
}
