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


def manifest_of(original: str) -> str:
    """Versions and lints are the release's. Its profiles are not: they abort on
    panic, and an engine would be left behind."""
    tables = re.split(r"^(?=\[)", original, flags=re.MULTILINE)
    kept = ("[workspace.package]", "[workspace.dependencies]", "[workspace.lints")
    members = ", ".join(f'"{member}"' for member in ["conformance", *(f"src/{crate}" for crate in CRATES)])
    head = f'[workspace]\nmembers = [{members}]\nresolver = "3"\n\n[profile.dev]\ndebug = false\nincremental = false\n\n'
    return head + GIT_ZEROMQ.sub(ZEROMQ, "".join(table for table in tables if table.startswith(kept)))


def unpack(archive: tarfile.TarFile, folder: pathlib.Path) -> None:
    wanted = ("Cargo.toml", "Cargo.lock", *(f"src/{crate}/" for crate in CRATES))
    for member in archive:
        _, _, path = member.name.partition("/rust/")
        if member.isfile() and path.startswith(wanted) and ".." not in path:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member).read()
            target.write_bytes(manifest_of(content.decode()).encode() if path == "Cargo.toml" else content)


with tarfile.open(sys.argv[1]) as archive:
    unpack(archive, pathlib.Path(sys.argv[2]))
