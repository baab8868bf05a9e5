#!/usr/bin/env bash
# Makes the base image of the Dockerfile's last stage from packages of Debian 12, under the
# name that the Dockerfile uses: for machines that reach Debian's mirrors but no image
# registry. An image of that name that is there already is left alone.
#
#   tests/image/base.sh [ARCHITECTURE]     # as Debian and Docker name it: amd64, arm64
#
# What is in it is what the published image has: C and C++ runtime, root certificates, time
# zones, and no shell. No program of it is run, so another architecture than the machine's needs
# no emulator. Needs a host with Debian 12, and buildah.
set -euo pipefail
cd "$(dirname "$0")/../.."

own=$(dpkg --print-architecture)
architecture=${1:-$own}
name=$(awk '$1 == "FROM" { last = $2 } END { print last }' Dockerfile)
if buildah inspect --type image "$name" >/dev/null 2>&1; then
  exit
fi
packages=(base-files ca-certificates gcc-12-base libc6 libgcc-s1 libgomp1 libssl3 libstdc++6 media-types netbase tzdata)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages" "$work/root"
# apt downloads as a user of its own, who may not write here.
apt=(apt-get -o APT::Sandbox::User=root)
if [ "$architecture" != "$own" ]; then
  # Lists of its own: those of this machine, and what is installed here, stay as they are.
  mkdir -p "$work/lists/partial" "$work/archives/partial"
  for suite in debian/bookworm debian-security/bookworm-security; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/${suite/\// } main"
  done >"$work/sources.list"
  apt+=(
    -o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture"
    -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o Dir::State::Status=/dev/null
    -o "Dir::Cache=$work" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::Languages=none
  )
  "${apt[@]}" update >/dev/null
fi
(
  cd "$work/packages"
  "${apt[@]}" download "${packages[@]}" >/dev/null
  for package in *.deb; do
    dpkg-deb --extract "$package" "$work/root"
  done
)
cd "$work/root"
mkdir -p tmp home/nonroot proc sys dev etc/ssl/certs
chmod 1777 tmp
chown 65532:65532 home/nonroot
# What the packages' own scripts would do.
cat usr/share/ca-certificates/mozilla/*.crt >etc/ssl/certs/ca-certificates.crt
printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >etc/passwd
printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >etc/group
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/info usr/share/lintian usr/share/ca-certificates

container=$(buildah from --arch "$architecture" scratch)
buildah add --quiet "$container" "$work/root" / >/dev/null
buildah config --os linux --arch "$architecture" --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt "$container"
buildah commit --quiet --rm "$container" "$name" >/dev/null
