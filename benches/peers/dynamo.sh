#!/usr/bin/env bash
# Times NVIDIA Dynamo's offline replay (ai-dynamo 1.4.2, from PyPI) on a trace,
# for comparison with `cargo bench` on the same machine and trace.
#
#   benches/peers/dynamo.sh TRACE.jsonl [WORKERS] [REPETITIONS]
#
# Installs the peer into target/peers/dynamo (about 250 MB) on first use.
set -euo pipefail
trace=$(realpath "${1:?usage: dynamo.sh TRACE.jsonl [WORKERS] [REPETITIONS]}")
workers=${2:-4}
repetitions=${3:-3}
root=$(cd "$(dirname "$0")/../.." && pwd)
venv="$root/target/peers/dynamo"
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --no-deps ai-dynamo==1.4.2 ai-dynamo-runtime==1.4.2
  "$venv/bin/pip" install --quiet "pydantic<2.13" uvloop msgspec zstandard prometheus-client pyzmq aiohttp tqdm numpy transformers
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
export DYN_LOG=error
for _ in $(seq "$repetitions"); do
  started=$(date +%s.%N)
  "$venv/bin/python" -W ignore -m dynamo.replay "$trace" --num-workers "$workers" --router-mode round_robin \
    --replay-mode offline --report-json "$report" > /dev/null 2>&1
  ended=$(date +%s.%N)
  "$venv/bin/python" - "$report" "$started" "$ended" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
whole_s = float(sys.argv[3]) - float(sys.argv[2])
run_s = report["wall_time_ms"] / 1e3
requests, tokens = report["completed_requests"], report["total_output_tokens"]
print(f"dynamo 1.4.2: {requests} requests, {tokens} output tokens; replay {run_s:.3f} s "
      f"({requests / run_s:,.0f} requests/s, {tokens / run_s:,.0f} output tokens/s); whole process {whole_s:.2f} s; "
      f"mean TTFT {report['mean_ttft_ms']:.2f} ms, mean ITL {report['mean_itl_ms']:.3f} ms")
PY
done
