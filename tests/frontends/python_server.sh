#!/usr/bin/env bash
# Drives `vcr play` with vLLM's Python API server: completions, n > 1, streams,
# logprobs, utility calls, several API servers with their coordinator, metrics.
#
#   tests/frontends/python_server.sh VENV MODEL [VCR]
#
# VENV is a virtual environment with vLLM (0.32.0 was tried) and MODEL a model
# folder with a tokenizer; the weights are never read. It takes minutes, since
# the server imports all of torch, and is therefore no part of the tests.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$1 model=$2 vcr=${3:-$root/target/release/vcr}
work=$(mktemp -d)
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=1
export VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_SERVER_DEV_MODE=1

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  pids=()
}
trap 'stop; rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  tail -n 20 "$work"/*.log >&2
  exit 1
}

# start ENGINES API_SERVERS: both processes, until the server answers.
start() {
  http=$(free_port) handshake=$(free_port)
  "$venv/bin/vllm" serve "$model" --served-model-name sim --load-format dummy --enforce-eager --max-model-len 2048 \
    --host 127.0.0.1 --port "$http" --data-parallel-address 127.0.0.1 --data-parallel-rpc-port "$handshake" \
    --data-parallel-size "$1" --data-parallel-size-local 0 --api-server-count "$2" \
    --enable-prompt-tokens-details >"$work/server.log" 2>&1 &
  pids+=($!)
  "$vcr" play --handshake-address "tcp://127.0.0.1:$handshake" --max-model-len 2048 --data-parallel-size "$1" \
    --decode-step-time 5ms >"$work/vcr.log" 2>&1 &
  pids+=($!)
  for _ in $(seq 300); do
    if curl -sf -m 2 "http://127.0.0.1:$http/health" >/dev/null; then return; fi
    sleep 1
  done
  fail "the server did not come up"
}

# check NAME EXPRESSION METHOD PATH [BODY]: the answer, as `answer`, must
# satisfy a Python expression; it is JSON, or text where it is none.
check() {
  local name=$1 expression=$2 method=$3 path=$4 body=${5:-}
  curl -s -m 60 -X "$method" -H 'content-type: application/json' ${body:+-d "$body"} \
    "http://127.0.0.1:$http/$path" >"$work/answer"
  python3 - "$work/answer" "$expression" <<'PY' || fail "$name: $(head -c 600 "$work/answer")"
import json, sys
text = open(sys.argv[1]).read()
try:
    answer = json.loads(text)
except ValueError:
    answer = text
sys.exit(0 if eval(sys.argv[2]) else 1)
PY
  echo "ok  $name"
}

common() {
  check "completion" 'answer["usage"]["completion_tokens"] == 5' POST v1/completions \
    '{"model": "sim", "prompt": "Hello world", "max_tokens": 5, "seed": 7}'
  check "two completions" 'len({choice["text"] for choice in answer["choices"]}) == 2' POST v1/completions \
    '{"model": "sim", "prompt": "Hello world", "max_tokens": 5, "n": 2}'
  check "chat stream" 'answer.count("data: ") >= 3 and answer.rstrip().endswith("[DONE]")' POST v1/chat/completions \
    '{"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": true}'
  check "logprobs" 'len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 4' POST v1/completions \
    '{"model": "sim", "prompt": "Hello world", "max_tokens": 4, "logprobs": 2}'
  check "prompt logprobs" 'len(answer["choices"][0]["prompt_logprobs"]) == 3' POST v1/completions \
    '{"model": "sim", "prompt": "Hello world foo", "max_tokens": 2, "prompt_logprobs": 1}'
  check "reset the prefix cache" 'answer["success"] is True' POST reset_prefix_cache
  check "sleep" 'True' POST 'sleep?level=1'
  check "asleep" 'answer["is_sleeping"] is True' GET is_sleeping
  check "wake up" 'True' POST wake_up
  check "awake" 'answer["is_sleeping"] is False' GET is_sleeping
  check "pause" 'True' POST 'pause?mode=keep'
  check "paused" 'answer["is_paused"] is True' GET is_paused
  check "resume" 'True' POST resume
  check "collective_rpc" 'all(result is None for result in answer["results"])' POST collective_rpc '{"method": "foo"}'
  check "metrics" '"vllm:generation_tokens_total" in answer' GET metrics
}

echo "=== one engine, one API server"
start 1 1
common
stop
echo "=== two engines, two API servers"
start 2 2
common
for index in 1 2 3 4 5 6; do
  check "request $index" 'answer["usage"]["completion_tokens"] == 20' POST v1/completions \
    "{\"model\": \"sim\", \"prompt\": \"Number $index\", \"max_tokens\": 20}"
done
echo "all checks passed"
