#!/usr/bin/env bash
# Runs the captures one after another.  usage: run.sh SITE OUT MODEL...
# SITE: the unpacked vLLM and its packages; MODEL: a folder of model/ with a plan-MODEL.json, or one of the other plans,
# whose names go on after the model's
here=$(dirname "$(realpath "$0")"); site=$1; out=$2; shift 2
export PYTHONPATH=$here:$site PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_LOGGING_LEVEL=INFO
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
mkdir -p "$out"
for m in "$@"; do
  model=${m%-again} model=${model%-repeat} model=${model%-0.33}
  python3 "$here/capture.py" "$here/plan-$m.json" "$here/model/$model" "$out/$m" > "$out/$m.log" 2>&1 || { echo "failed $m" >> "$out/state"; exit 1; }
  echo "done $m" >> "$out/state"
done
echo finished >> "$out/state"
