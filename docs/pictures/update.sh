#!/usr/bin/env bash
# Draws the pictures of this folder again: report.png is the top of the page that
# `vcr run scenarios/failure_drill.rhai --out` writes. Needs a built vcr and
# tests/frontends/clients.sh browser.
set -euo pipefail
cd "$(dirname "$0")/../.."
clients=${VCR_FRONTENDS:-target/frontends}/clients

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
target/release/vcr run scenarios/failure_drill.rhai --quiet --out "$folder"
"$clients/browser/bin/python" tests/frontends/clients/browser.py "$folder/report.html" docs/pictures/report.png >"$folder/seen"
