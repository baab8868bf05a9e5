#!/usr/bin/env bash
# Fetches the real Rust frontend of vLLM releases out of their wheels (Linux,
# x86-64) into target/frontends/VERSION/vllm-rs, where the tests look for it.
#
#   tests/frontends/fetch.sh [VERSION...]      # 0.33.0 if none is named
#
# A wheel has some 300 MB; the frontend in it is one file of 60 MB.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -gt 0 ] || set -- 0.33.0
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
for version in "$@"; do
  folder="$root/target/frontends/$version"
  [ ! -x "$folder/vllm-rs" ] || continue
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest "$wheels" "vllm==$version"
  mkdir -p "$folder"
  python3 - "$wheels"/vllm-"$version"*.whl "$folder" <<'PY'
import os, shutil, sys, zipfile
wheel, folder = sys.argv[1:]
part, whole = os.path.join(folder, "vllm-rs.part"), os.path.join(folder, "vllm-rs")
with zipfile.ZipFile(wheel) as archive, archive.open("vllm/vllm-rs") as source, open(part, "wb") as target:
    shutil.copyfileobj(source, target)
os.chmod(part, 0o755)
os.rename(part, whole)
PY
  rm -f "$wheels"/*.whl
done
