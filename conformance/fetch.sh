#!/usr/bin/env bash
# Fetches vLLM's own Rust client of an engine, as a release's source
# distribution has it, into target/conformance/VERSION: a workspace of that
# client, the crates it needs, and the driver of this folder.
#
#   conformance/fetch.sh [VERSION...]      # 0.33.0 if none is named
#
# A source distribution has some 45 MB; what is kept of it, less than one.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- 0.33.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for version in "$@"; do
  folder="$root/target/conformance/$version"
  [ ! -e "$folder" ] || continue
  python3 "$root/conformance/sdist.py" "$version" "$work"
  python3 "$root/conformance/workspace.py" "$work/vllm-$version.tar.gz" "$work/$version"
  ln -s ../../../conformance "$work/$version/conformance"
  mkdir -p "$(dirname "$folder")"
  mv "$work/$version" "$folder"
  rm -f "$work"/*.tar.gz
done
