"""Draws the top of a page in headless Chromium: picture.py PAGE PICTURE [HEIGHT [SELECTOR]].

PAGE is a file or a URL. With a selector, the picture begins at the first element that it names.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

# As in browser.py.
NAMES = ["chromium-headless-shell", "chromium", "google-chrome"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("picture")
    parser.add_argument("height", nargs="?", type=int, default=900)
    parser.add_argument("selector", nargs="?")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--scheme", default="light")
    args = parser.parse_args()
    is_url = args.page.startswith("http")
    binary = next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        # Small enough for a page of documentation.
        context = browser.new_context(
            viewport={"width": args.width, "height": args.height},
            device_scale_factor=0.7,
            offline=not is_url,
            color_scheme=args.scheme,
        )
        page = context.new_page()
        page.goto(args.page if is_url else Path(args.page).resolve().as_uri())
        if args.selector:
            page.locator(args.selector).first.evaluate("(element) => element.scrollIntoView()")
        if is_url:
            # The page asks its server every second.
            page.wait_for_timeout(2500)
        page.screenshot(path=args.picture)
        browser.close()


main()
