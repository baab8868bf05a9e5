#!/usr/bin/env bash
# Builds the wheel into target/wheels:
#
#   python/build.sh
#
# It needs Rust, Python 3.10 or later with venv, a C++ compiler and libclang. It installs maturin into
# target/tools/maturin, and builds the shipped guests if there are none. With --install it also
# installs the wheel into the environments of `tests/frontends/clients.sh python ray`, where the
# tests look for it.
#
# The crates are compiled once for the binary and the wheel: same profile, features and target folder.
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
cd "$(dirname "$0")/.."
clients=${VCR_FRONTENDS:-target/frontends}/clients
maturin=$(grep '^maturin==' tests/frontends/clients/python.txt)

case "${1-}" in
  "" | --install) ;;
  *) echo "unknown argument \`$1\`: expected --install or nothing" >&2; exit 2 ;;
esac

. tests/needs.sh
require_packages

tools=target/tools/maturin
if [ "$("$tools/bin/maturin" --version 2>/dev/null | tr ' ' =)" != "${maturin/==/=}" ]; then
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet "$maturin"
fi

compgen -G 'guests/dist/*.wasm' >/dev/null || cargo run --release --locked -- guest build --bootstrap
python/shipped.sh
rm -rf target/wheels
PATH="$PWD/$tools/bin:$PATH" maturin build --quiet --locked \
  --manifest-path python/Cargo.toml --interpreter python3 --out target/wheels
echo "built $(echo target/wheels/vcr-*.whl)"

[ "${1-}" = --install ] || exit 0
for name in python ray; do
  "$clients/$name/bin/pip" install --quiet --no-deps --no-index --force-reinstall target/wheels/vcr-*.whl
done
