#!/usr/bin/env bash
# Runs every fuzz target for a bounded time, with coverage feedback and without
# a nightly compiler: what libFuzzer needs are passes that any rustc has.
# Needs a C++ compiler.
#
#   fuzz/run.sh [SECONDS_EACH [TARGET...]]     # 10 seconds each, all targets
#
# What it finds is kept in fuzz/corpus/TARGET; an input that crashes a target
# is written to fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-10}
[ $# -eq 0 ] || shift
if [ $# -eq 0 ]; then
  mapfile -t targets < <(find fuzz_targets -name '*.rs' | sed 's|.*/||; s|\.rs$||' | sort)
  set -- "${targets[@]}"
fi
coverage=(
  --cfg fuzzing -Cpasses=sancov-module -Cdebug-assertions=on -Ccodegen-units=1
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
# A target of its own: flags named for one are not used for build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="${coverage[*]}" cargo build --release --locked --target "$host" --bins
run_target() {
  local target=$1 log="artifacts/$1/log"
  mkdir -p "corpus/$target" "artifacts/$target"
  if ! "${CARGO_TARGET_DIR:-target}/$host/release/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "the fuzz target $target failed; its input is in fuzz/artifacts/$target" >&2
    return 1
  fi
  printf '%-16s %s\n' "$target" "$(tail -n 1 "$log")"
}
export -f run_target
export host seconds
# A target on each core; one that fails does not keep the others from running.
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -euo pipefail -c 'run_target "$1"' run_target
