#!/usr/bin/env bash
# Records a real vLLM engine on the CPU and plays it back: the same answers,
# the same prefix hits, and the decisions of its scheduler are ours.
#
#   tests/frontends/record_real.sh VENV MODEL [VCR]
#
# VENV is a virtual environment with vLLM (0.32.0 was tried), MODEL a folder
# with a small config.json and a tokenizer; the weights are random. The frontend
# is target/frontends/0.32.0/vllm-rs (tests/frontends/fetch.sh all). It takes
# minutes, since the engine imports all of torch, and is not part of the tests.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$1 model=$2 vcr=${3:-$root/target/release/vcr}
frontend=$root/target/frontends/0.32.0/vllm-rs
work=$(mktemp -d)
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CPU_OMP_THREADS_BIND=nobind

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  tail -n 20 "$work"/*.log >&2
  exit 1
}

# chain NAME ENGINE...: a frontend, a recorder that writes NAME.jsonl, and an
# engine, {handshake} in whose command is where it goes; then the workload.
chain() {
  local name=$1 again=() http handshake engines own=()
  shift
  http=$(free_port) handshake=$(free_port) engines=$(free_port)
  "$frontend" serve "$model" --served-model-name sim --host 127.0.0.1 --port "$http" \
    --data-parallel-address 127.0.0.1 --data-parallel-rpc-port "$handshake" \
    --data-parallel-size 1 --data-parallel-size-local 0 --engine-ready-timeout-secs 600 >"$work/$name.frontend.log" 2>&1 &
  own+=($!)
  "$vcr" record --frontend-handshake "tcp://127.0.0.1:$handshake" --engine-handshake "tcp://127.0.0.1:$engines" \
    --out "$work/$name.jsonl" --record-tokens --record-prompts --model sim >"$work/$name.record.log" 2>&1 &
  local recorder=$!
  own+=("$recorder")
  "${@//\{handshake\}/$engines}" >"$work/$name.engine.log" 2>&1 &
  local engine=$!
  own+=("$engine")
  pids+=("${own[@]}")
  for _ in $(seq 3000); do
    if curl -sf -m 2 "http://127.0.0.1:$http/health" >/dev/null; then break; fi
    kill -0 "$engine" 2>/dev/null || fail "the engine of $name ended"
    sleep 0.2
  done
  [ "$name" = live ] || again=(--again)
  python3 "$root/tests/frontends/workload.py" "http://127.0.0.1:$http" "${again[@]}" >"$work/$name.answers" ||
    fail "the workload of $name failed"
  kill "$recorder"
  wait "$recorder" || fail "the recorder of $name failed"
  kill "$engine"
  wait "$engine" || [ "$name" = live ] || fail "the replay $name is not what was recorded"
  kill "${own[0]}" && wait "${own[0]}" || true
}

PYTHONPATH=$root/tests/oracle STEP_LOG_DIR=$work/log chain live \
  "$venv/bin/vllm" serve "$model" --headless --load-format dummy --enforce-eager --max-model-len 2048 \
  --data-parallel-size 1 --data-parallel-size-local 1 --data-parallel-address 127.0.0.1 \
  --data-parallel-rpc-port '{handshake}' --scheduler-cls live_log.LoggingScheduler --enable-logging-iteration-details
echo "recorded: $(tail -n 1 "$work/live.record.log")"
"$vcr" inspect conform "$work/log" | tail -n 1

# The settings that hits depend on, as the engine reported them.
setting() { python3 -c 'import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    if record["kind"] == "engine":
        print(record["settings"][sys.argv[2]])' "$work/live.jsonl" "$1"; }
engine=("$vcr" play --handshake-address "tcp://127.0.0.1:{handshake}" --vllm-minor 0.32 --max-model-len 2048
  --block-size "$(setting block_size)" --num-gpu-blocks "$(setting num_gpu_blocks)"
  --max-num-seqs "$(setting max_num_seqs)" --max-num-batched-tokens "$(setting max_num_batched_tokens)"
  --seed 99 --strict --playback "$work/live.jsonl")

chain recorded "${engine[@]}" --playback-times recorded
chain model "${engine[@]}" --playback-times model --decode-step-time 5ms

for name in recorded model; do
  cmp "$work/live.answers" "$work/$name.answers" || fail "the answers of $name differ"
  python3 - "$work/live.jsonl" "$work/$name.jsonl" "$name" <<'PY' || fail "the requests of $name differ"
import json, sys

def requests(path):
    lines = [json.loads(line) for line in open(path)]
    records = [line for line in lines if line["kind"] == "request"]
    return sorted(records, key=lambda record: (record["prompt_hash"], record["arrival_ns"]))

live, again = requests(sys.argv[1]), requests(sys.argv[2])
assert len(live) == len(again), (len(live), len(again))
tokens = hits = stopped = 0
for old, new in zip(live, again):
    ids, other = old["output_token_ids"], new["output_token_ids"]
    if old["finish_reason"] == "abort":
        # The client may be quicker to go away, or slower.
        ids, other = ids[: len(other)], other[: len(ids)]
        stopped += 1
    assert ids == other, (old, new)
    assert old["prompt_token_ids"] == new["prompt_token_ids"], (old, new)
    assert old.get("cached_tokens", 0) == new.get("cached_tokens", 0), (old, new)
    tokens += len(other)
    hits += new.get("cached_tokens", 0)
print(f"ok  {sys.argv[3]} times: {len(again)} requests ({stopped} aborted), {tokens} tokens and {hits} cached tokens are the same")
PY
done
