#!/usr/bin/env bash
# Draws the pictures of this folder again, of pages that commands write. Needs a built vcr (or
# VCR=path) and tests/frontends/clients.sh browser.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${VCR_FRONTENDS:-target/frontends}/clients/browser/bin/python
vcr=${VCR:-target/release/vcr}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

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
