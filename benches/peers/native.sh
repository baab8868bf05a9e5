#!/usr/bin/env bash
# Compares `vcr replay` with the crates of NVIDIA Dynamo 1.6.1's replay (aisimulate-core 0.13.0, and
# dynamo-mocker 1.6.1 for the KV router), called natively with their compact input: no Python and no
# prompts as tokens, which are most of what replay.sh measures. Programs take turns; prints medians
# and ranges of CPU seconds and memory of whole processes, and how far the means agree.
#
#   benches/peers/native.sh TRACE.jsonl [--runs N] [--rows NAME,...] [--vcr PATH] [--out FILE.json]
#
# Needs target/release/vcr (or --vcr). Builds the peer into target/peers/native on first use, some
# hundred crates.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${1:?usage: native.sh TRACE.jsonl [--runs N] [--rows NAME,...] [--vcr PATH] [--out FILE.json]}"
cargo build --quiet --release --locked --manifest-path "$here/native/Cargo.toml" --target-dir "$root/target/peers/native"
exec python3 "$here/native.py" --root "$root" "$@"
