#!/usr/bin/env bash
# Measures `vcr serve` beside vLLM's own frontend with `vcr play` behind it, in one
# run in which both take turns, and prints one table. Nothing else should run on the
# machine: gaps are told in fractions of a millisecond.
#
#   benches/serve.sh [OPTION...]      # of `play-load serve`: --parts chain, --rounds 5
#
# The frontend and its model are those that tests/frontends/fetch.sh gets; without
# them `vcr serve` is measured alone.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --workspace --features vcr/full --bins
folder=${VCR_FRONTENDS:-target/frontends}
model=$folder/model
frontend=
server="target/release/vcr serve --quiet --port {http_port} --served-model-name sim --tokens random"
if [ -x "$folder/0.33.0/vllm-rs" ] && [ -d "$model" ]; then
  frontend="$folder/0.33.0/vllm-rs serve $model --served-model-name sim --host 127.0.0.1 --port {http_port}
    --data-parallel-address 127.0.0.1 --data-parallel-rpc-port {handshake_port}
    --data-parallel-size 1 --data-parallel-size-local 0"
  server="$server $model"
else
  echo "no frontend in $folder: run tests/frontends/fetch.sh" >&2
fi
HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR exec target/release/play-load serve --server "$server" --frontend "$frontend" "$@"
