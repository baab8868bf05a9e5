#!/usr/bin/env bash
# Compares `vcr replay` with NVIDIA Dynamo's offline replay on the same traces, in
# one sitting: the command line of ai-dynamo 1.4.2 and the Python call of 1.6.1,
# both from PyPI. Prints CPU seconds and memory of whole processes and how far the
# reports agree; writes all of it as JSON.
#
#   benches/peers/replay.sh TRACE.jsonl [--runs N] [--workers 1,4,16] [--out FILE.json]
#
# Needs target/release/vcr. Installs the peers into target/peers on first use
# (about 500 MB).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${1:?usage: replay.sh TRACE.jsonl [--runs N] [--workers 1,4,16] [--out FILE.json]}"
for version in 1.4.2 1.6.1; do
  venv="$root/target/peers/dynamo-$version"
  if [ ! -e "$venv/installed" ]; then
    python3 -m venv "$venv"
    # 1.6.1 asks for a package that is not on the index; its replay works without.
    "$venv/bin/pip" install --quiet --no-deps "ai-dynamo==$version" "ai-dynamo-runtime==$version"
    "$venv/bin/pip" install --quiet "pydantic<2.13" uvloop msgspec zstandard prometheus-client pyzmq aiohttp tqdm numpy transformers
    touch "$venv/installed"
  fi
done
exec python3 "$here/replay.py" --root "$root" "$@"
