#!/usr/bin/env bash
# Makes the base image of the Dockerfile's last stage from packages of Debian 12, under the
# name that the Dockerfile uses: for machines that reach Debian's mirrors but no image
# registry. An image of that name that is there already is left alone.
#
# What is in it is what the published image has: C and C++ runtime, root certificates, time
# zones, and no shell. Needs a host with Debian 12, and buildah.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=$(awk '$1 == "FROM" { last = $2 } END { print last }' Dockerfile)
if buildah inspect --type image "$name" >/dev/null 2>&1; then
  exit
fi
packages=(base-files ca-certificates gcc-12-base libc6 libgcc-s1 libgomp1 libssl3 libstdc++6 media-types netbase tzdata)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/packages" "$work/root"
(
  cd "$work/packages"
  # apt downloads as a user of its own, who may not write here.
  apt-get -o APT::Sandbox::User=root download "${packages[@]}" >/dev/null
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

container=$(buildah from scratch)
buildah add --quiet "$container" "$work/root" / >/dev/null
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt "$container"
buildah commit --quiet --rm "$container" "$name" >/dev/null
