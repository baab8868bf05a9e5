#!/usr/bin/env bash
# Drives an engine with vLLM's own client of engines, of any release from 0.27
# to 0.33, and says what held.
#
#   conformance/run.sh [VERSION [VCR [OPTION...]]]       # 0.33.0, target/release/vcr
#   conformance/run.sh VERSION [OPTION...] -- COMMAND...   # any other engine
#   conformance/run.sh VERSION --clippy                  # lints the driver
#
# Options of the first form are those of `vcr play`, those of the second the
# driver's, see conformance/src/arguments.rs.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=${1:-0.33.0}
minor=${version%.*}
target=${CARGO_TARGET_DIR:-$root/target}
"$root/conformance/fetch.sh" "$version"
# One target folder: releases share most of their dependencies, and workspace.py numbers their own crates.
build=(--manifest-path "$root/target/conformance/$version/Cargo.toml" --target-dir "$target/conformance/target"
  --package vcr-conformance --features "vcr-conformance/$minor")
if [ "${2:-}" = --clippy ]; then
  exec cargo clippy "${build[@]}" -- --deny warnings
elif [[ " $* " == *" -- "* ]]; then
  arguments=("${@:2}")
else
  vcr=$(realpath "${2:-$target/release/vcr}")
  engine=("$vcr" play --vllm-minor "$minor" --handshake-address "{address}" --data-parallel-start-rank "{rank}"
    --max-model-len 4096 --max-loras 2 --output-tokens 6 --prefill-step-time 8ms --decode-step-time 4ms
    "${@:3}")
  arguments=(--dying "exec ${engine[*]@Q} --fault dead:after=20" -- "${engine[@]}")
fi
exec cargo run --quiet "${build[@]}" -- "${arguments[@]}"
