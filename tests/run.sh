#!/usr/bin/env bash
# Runs every test, and installs what the tests need below target/:
#
#   tests/run.sh             # with the real frontends and clients that the tests drive
#   tests/run.sh --offline   # fetches none of these; their tests are skipped
#
# Packages of the system are not installed, but named if they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/needs.sh

offline=
case "${1-}" in
  "") ;;
  --offline) offline=yes ;;
  *) echo "unknown argument \`$1\`: expected --offline or nothing" >&2; exit 2 ;;
esac

require_packages
for program in chromium-headless-shell zsh fish buildah npm; do
  command -v $program >/dev/null || absent="${absent-} $program"
done
[ -z "${absent-}" ] || echo "tests that need these packages will be skipped:$absent"

if [ -z "$offline" ]; then
  echo "fetching vLLM's frontends and other people's clients into ${VCR_FRONTENDS:-target/frontends}: up to 6 GB, once" \
    "(\`tests/run.sh --offline\` leaves them out)"
  tests/frontends/fetch.sh && tests/frontends/clients.sh ||
    { echo "hint: \`tests/run.sh --offline\` runs the tests that need no downloads" >&2; exit 1; }
fi

command -v cargo-nextest >/dev/null || cargo install cargo-nextest --locked
rm -rf target/skipped
cargo run --release --features full -- guest build --bootstrap
[ ! -d "${VCR_FRONTENDS:-target/frontends}/clients/python" ] || python/build.sh --install
cargo nextest run --release --workspace --features vcr/full
# Changes the scheduler's rules, so it has a build of its own.
cargo nextest run --release --package vcr-steplog --features mutated-rules --test conform rules::
tests/skipped.sh
