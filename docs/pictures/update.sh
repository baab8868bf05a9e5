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
# PAGE NAME HEIGHT [SELECTOR], and options of picture.py
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
  name=page-${part%/*}
  draw "$page#$part" "$name" 900
  draw "$page#$part" "$name-dark" 900 --scheme dark
  draw "$page#$part" "$name-phone" 900 --width 390
done
