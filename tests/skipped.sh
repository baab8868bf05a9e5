#!/usr/bin/env bash
# Says how many checks of the last test run were skipped, and for want of what.
# `tests/run.sh` removes the notes of earlier runs first.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${CARGO_TARGET_DIR:-target}/skipped
if [ ! -d "$folder" ]; then
  echo "no checks were skipped"
  exit
fi
cat "$folder"/* | sort | uniq -c | sort -rn | awk '
  { total += $1; lines[NR] = $0 }
  END { printf "%d checks were skipped:\n", total; for (n = 1; n <= NR; n++) print lines[n] }'
