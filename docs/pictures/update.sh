#!/usr/bin/env bash
# Draws the pictures of this folder again, of pages that commands write. Needs a built vcr (or
# VCR=path) and tests/frontends/clients.sh browser.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${VCR_FRONTENDS:-target/frontends}/clients/browser/bin/python
vcr=${VCR:-target/release/vcr}

folder=$(mktemp -d)
server=
trap 'kill $server $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT

# A scenario that fails an assertion is drawn, too.
run() { "$vcr" run "$@" --quiet >"$folder/said" || [ $? -eq 1 ]; }
# PAGE NAME HEIGHT [SELECTOR]
draw() { "$python" tests/frontends/clients/picture.py "$1" "docs/pictures/$2.png" "${@:3}"; }

run scenarios/failure_drill.rhai --out "$folder/drill"
draw "$folder/drill/report.html" report 1500
run scenarios/pd_burst.rhai --out "$folder/pd"
draw "$folder/pd/report.html" requests 1150 "#phases"
run scenarios/same_everywhere.rhai -e sessions=100 --target serve --out "$folder/serve"
draw "$folder/serve/report.html" serve 900
run scenarios/pd_burst.rhai -e burst=45 --out "$folder/burst"
"$vcr" report "$folder/pd" "$folder/burst" -o "$folder/comparison.html" >"$folder/said"
draw "$folder/comparison.html" comparison 1150
run scenarios/canary.rhai --out "$folder/canary"
"$vcr" gate --baseline "$folder/canary#stable" --candidate "$folder/canary#canary" --lengths --out "$folder/gate" >"$folder/said" || true
draw "$folder/gate/gate.html" gate 1100
run scenarios/failure_drill.rhai --sweep rate=8..64..8 --out "$folder/sweep"
draw "$folder/sweep/points.html" sweep 1150
h100=tests/recordings/h100/llama-3.1-8b
"$vcr" fit $h100/p50/requests.jsonl.gz --shape llama-3.1-8b -o "$folder/model.json" --engine \
    '--num-gpu-blocks-override 28934 --max-num-seqs 1024 --max-num-batched-tokens 8192 --async-scheduling' >"$folder/said"
"$vcr" calibrate "$folder/model.json" $h100/p75/requests.jsonl.gz --html "$folder/calibration.html" >"$folder/said"
draw "$folder/calibration.html" calibration 1150
"$vcr" plan --model Qwen/Qwen3-8B --gpu h100,l40s --price h100=2.5,l40s=1 --rate 20 --requests 2000 \
    --prompt-tokens 'lognormal(900, 700)' --output-tokens 200 --slo 'ttft.p95 < 500ms' --slo 'itl.p99 < 60ms' \
    --latency roofline --out "$folder/plan" >"$folder/said"
draw "$folder/plan/plan.html" plan 1150

# The page of a server with some requests, of which one is drawn.
"$vcr" serve --port 0 --time-to-first-token 80ms --inter-token-latency 8ms --data-parallel-size 2 \
    --max-num-seqs 4 2>"$folder/log" &
server=$!
until page=$(grep -o 'http://[^ ]*/_vcr/' "$folder/log"); do sleep 0.1; done
ask() {
  curl -s "${page%/_vcr/}/v1/chat/completions" -H 'Content-Type: application/json' -d "{
    \"messages\": [{\"role\": \"system\", \"content\": \"Answer in two sentences.\"},
      {\"role\": \"user\", \"content\": \"$1\"}], \"max_tokens\": $2, \"stream\": true}" >"$folder/answer.$BASHPID"
}
# While pictures are drawn, two clients keep asking.
while ask "What is a KV cache?" 120; do :; done &
while ask "Plan a trip to Lisbon." 200; do :; done &
curl -s -X POST "${page}api/control/client-faults" -H 'Content-Type: application/json' \
    -d '{"fault": "stall:for=2s,call=50"}' >"$folder/said"
sleep 20
for part in requests/3 engine controls; do
  draw "$page#$part" "page-${part%/*}" 900
done
