"""Draws the top of a page in headless Chromium: picture.py PAGE PICTURE [HEIGHT [SELECTOR]].

With a selector, the picture begins at the first element that it names.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# As in browser.py.
NAMES = ["chromium-headless-shell", "chromium", "google-chrome"]


def main():
    path, picture = Path(sys.argv[1]).resolve().as_uri(), sys.argv[2]
    height = int(sys.argv[3]) if len(sys.argv) > 3 else 900
    binary = next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        # Small enough for a page of documentation.
        context = browser.new_context(viewport={"width": 1200, "height": height}, device_scale_factor=0.7, offline=True)
        page = context.new_page()
        page.goto(path)
        if len(sys.argv) > 4:
            page.locator(sys.argv[4]).first.evaluate("(element) => element.scrollIntoView()")
        page.screenshot(path=picture)
        browser.close()


main()
