#!/usr/bin/env bash
# Fetches the charting library of report.html from npm, at the version below, and
# checks it. To update: change the version and the digest of its package, run this,
# then the tests (`browser` in tests/tests/report.rs).
set -euo pipefail
cd "$(dirname "$0")"

version=1.6.32
sha256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "uplot@$version" >/dev/null)
echo "$sha256  $folder/uplot-$version.tgz" | sha256sum --check --quiet
tar -xzf "$folder/uplot-$version.tgz" -C "$folder"
cp "$folder/package/dist/uPlot.iife.min.js" "$folder/package/dist/uPlot.min.css" .
cp "$folder/package/LICENSE" uPlot.LICENSE
