"""Makes a workspace of vLLM's Rust client, out of a source distribution.

    workspace.py vllm-VERSION.tar.gz FOLDER

The whole Rust workspace of a release needs sources that are in no registry;
the client and what it depends on need one of them, see `GIT_ZEROMQ`.
"""

import pathlib
import re
import sys
import tarfile

CRATES = ["engine-core-client", "metrics"]

# From 0.32 on, ZeroMQ is taken from a git revision between the releases 0.6.0
# and 0.7.0, for a function that 0.7.0 has.
GIT_ZEROMQ = re.compile(r'^zeromq = \{ git = "[^"]*", rev = "[^"]*"', re.MULTILINE)
ZEROMQ = 'zeromq = { version = "0.7.0"'


# Releases do not number their crates. With numbers, the crates of several releases
# can share a target folder: Cargo names what it builds by package version.
PACKAGE_VERSION = re.compile(r'^version = "[^"]*"', re.MULTILINE)


def manifest_of(original: str, release: str) -> str:
    """Dependencies and lints are the release's. Its profiles are not: they abort on
    panic, and an engine would be left behind."""
    tables = re.split(r"^(?=\[)", original, flags=re.MULTILINE)
    kept = ("[workspace.package]", "[workspace.dependencies]", "[workspace.lints")
    members = ", ".join(f'"{member}"' for member in ["conformance", *(f"src/{crate}" for crate in CRATES)])
    head = f'[workspace]\nmembers = [{members}]\nresolver = "3"\n\n[profile.dev]\ndebug = false\nincremental = false\n\n'
    body = GIT_ZEROMQ.sub(ZEROMQ, "".join(table for table in tables if table.startswith(kept)))
    return head + PACKAGE_VERSION.sub(f'version = "{release}"', body, count=1)


def unpack(archive: tarfile.TarFile, folder: pathlib.Path, release: str) -> None:
    wanted = ("Cargo.toml", "Cargo.lock", *(f"src/{crate}/" for crate in CRATES))
    for member in archive:
        _, _, path = member.name.partition("/rust/")
        if member.isfile() and path.startswith(wanted) and ".." not in path:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member).read()
            if path == "Cargo.toml":
                content = manifest_of(content.decode(), release).encode()
            target.write_bytes(content)


source = pathlib.Path(sys.argv[1])
with tarfile.open(source) as archive:
    unpack(archive, pathlib.Path(sys.argv[2]), source.name.removeprefix("vllm-").removesuffix(".tar.gz"))
