#!/usr/bin/env bash
# Runs `vcr` in the root folder of an image as a container would that has nothing: another user
# than the image's, a root that cannot be written, an empty /tmp, and one mounted folder, /out.
#
#   tests/image/run.sh ROOT OUT ARGS...
#
# An image of another architecture is run by the emulator that VCR_EMULATOR names, a static program
# such as qemu-aarch64-static. Needs root, for mounts in a namespace of their own.
set -euo pipefail
user=12345

# In a namespace of its own from here on, so that the mounts end with the command.
if [ "${VCR_IN_NAMESPACE:-}" != yes ]; then
  mkdir -p "$1/out"
  VCR_IN_NAMESPACE=yes exec unshare --mount "$0" "$@"
fi
root=$1 out=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind "$out" "$root/out"
program=(vcr)
if [ -n "${VCR_EMULATOR:-}" ]; then
  install -m 755 "$VCR_EMULATOR" "$root/tmp/emulator"
  program=(/tmp/emulator /usr/local/bin/vcr)
fi
exec env -i PATH=/usr/local/bin XDG_CACHE_HOME=/tmp/cache ${SSL_CERT_FILE:+"SSL_CERT_FILE=$SSL_CERT_FILE"} \
  /usr/bin/unshare --root="$root" --wd=/opt/vcr --setgid=$user --setuid=$user "${program[@]}" "$@"
