#!/usr/bin/env bash
# Builds the wheel into target/wheels and installs it where its tests run:
#
#   python/build.sh
#
# The environments are those of `tests/frontends/clients.sh python ray`. The crates below are
# compiled once for the binary and the wheel: same profile, same features, same target folder.
set -euo pipefail
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
cd "$(dirname "$0")/.."
clients=${VCR_FRONTENDS:-target/frontends}/clients

python/shipped.sh
rm -rf target/wheels
PATH="$PWD/$clients/python/bin:$PATH" maturin build --quiet --locked --offline \
  --manifest-path python/Cargo.toml --interpreter python3 --out target/wheels
for name in python ray; do
  "$clients/$name/bin/pip" install --quiet --no-deps --no-index --force-reinstall target/wheels/vcr-*.whl
done
