"""Downloads the source distribution of a release of vLLM into a folder.

    sdist.py VERSION FOLDER

`pip download` would do, but that builds the distribution's metadata, which
takes PyTorch. So pip only says where the file is, by its own configuration.
"""

import hashlib
import os
import sys

from pip._internal.commands.download import DownloadCommand
from pip._vendor.packaging.specifiers import SpecifierSet


def download(version: str, folder: str) -> None:
    command = DownloadCommand("download", "")
    with command.main_context():
        options, _ = command.parse_args(["--no-binary=:all:"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = finder.find_best_candidate("vllm", SpecifierSet(f"=={version}")).best_candidate
        if found is None:
            sys.exit(f"the package index has no source distribution of vllm {version}")
        # Compressed on the way would be decompressed on arrival.
        answer = session.get(found.link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
        answer.raise_for_status()
        checksum = hashlib.new(found.link.hash_name or "sha256")
        with open(os.path.join(folder, f"vllm-{version}.tar.gz"), "wb") as file:
            for chunk in answer.iter_content(1 << 20):
                checksum.update(chunk)
                file.write(chunk)
        if found.link.hash is not None and checksum.hexdigest() != found.link.hash:
            sys.exit(f"the source distribution of vllm {version} has another checksum than the index says")


download(*sys.argv[1:])
