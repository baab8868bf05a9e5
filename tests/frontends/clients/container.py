"""Makes a container that everybody can read, by a request that the account signs:
container.py ENDPOINT ACCOUNT KEY CONTAINER. Prints its URL as JSON.
"""

import base64
import hashlib
import hmac
import json
import sys
import urllib.request
from email.utils import formatdate


def main():
    endpoint, account, key, container = sys.argv[1:]
    headers = {
        "x-ms-blob-public-access": "container",
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": "2021-12-02",
    }
    # An emulator has the account in the path, too.
    resource = f"/{account}/{account}/{container}\nrestype:container"
    # The method, eleven headers that are not there, those above and the resource.
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in sorted(headers.items())) + resource
    digest = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{account}/{container}"
    urllib.request.urlopen(urllib.request.Request(f"{url}?restype=container", method="PUT", headers=headers))
    json.dump({"url": url}, sys.stdout)


if __name__ == "__main__":
    main()
