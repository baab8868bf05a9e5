#!/usr/bin/env bash
# Copies the scenarios with their traces, and the guests, to where wheels are made of them: they lie
# to each other as they do in the repository, so that scenarios find both.
set -euo pipefail
cd "$(dirname "$0")/.."
shipped=python/vcr/shipped

compgen -G 'guests/dist/*.wasm' >/dev/null ||
  { echo "there are no guests: build them with \`cargo run --release -- guest build --bootstrap\`" >&2; exit 1; }
rm -rf "$shipped"
mkdir -p "$shipped/scenarios/traces" "$shipped/guests/dist"
cp scenarios/*.rhai "$shipped/scenarios"
cp scenarios/traces/*.jsonl scenarios/traces/*.zst scenarios/traces/README.md "$shipped/scenarios/traces"
cp guests/dist/*.wasm "$shipped/guests/dist"
