#!/usr/bin/env bash
# Compares `vcr replay` with the crate of NVIDIA Dynamo 1.6.1's replay on random small traces, over the
# engine options that both have: vLLM, SGLang and TensorRT-LLM, ranks, small pools, chunks, intervals of
# prefills, disaggregation, host tiers. Prints each trace whose means differ, and counts by area.
#
#   benches/peers/random.sh [--cases N] [--seed S] [--areas NAME,...] [--keep FOLDER] [--vcr PATH]
#                           [--peer PATH | --python PATH]
#
# Needs target/release/vcr (or --vcr). Builds the peer as native.sh does, unless --peer names it, or --python
# names a Python with ai-dynamo 1.6.1 (replay.sh installs one), whose replay is the same crate.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
if [[ " $* " != *" --peer "* && " $* " != *" --python "* ]]; then
    cargo build --quiet --release --locked --manifest-path "$here/native/Cargo.toml" --target-dir "$root/target/peers/native"
fi
exec python3 "$here/random_traces.py" --root "$root" "$@"
