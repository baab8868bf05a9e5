"""Draws the top of a page in headless Chromium: picture.py PAGE PICTURE [HEIGHT [SELECTOR]].

PAGE is a file or a URL. With a selector, the picture begins at the first element that it names. NAME.png is the
page in light colours, NAME-dark.png the page in dark colours and, to the right, as wide as a phone.
"""

import base64
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# As in browser.py.
NAMES = ["chromium-headless-shell", "chromium", "google-chrome"]


def taken(browser, address, height, selector, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": height},
        # Small enough for a page of documentation.
        device_scale_factor=0.7,
        offline=address.startswith("file:"),
        color_scheme=scheme,
    )
    page = context.new_page()
    page.goto(address)
    if selector:
        page.locator(selector).first.evaluate("(element) => element.scrollIntoView()")
    if not address.startswith("file:"):
        # A page of a server asks it every second.
        page.wait_for_timeout(2500)
    picture = page.screenshot()
    context.close()
    return picture


def main():
    address = sys.argv[1] if sys.argv[1].startswith("http") else Path(sys.argv[1]).resolve().as_uri()
    picture = Path(sys.argv[2])
    height = int(sys.argv[3]) if len(sys.argv) > 3 else 900
    selector = sys.argv[4] if len(sys.argv) > 4 else None
    binary = next(filter(None, map(shutil.which, NAMES)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        picture.write_bytes(taken(browser, address, height, selector, 1200, "light"))
        views = [taken(browser, address, height, selector, width, scheme) for width, scheme in [(1200, "dark"), (390, "light")]]
        page = browser.new_page(viewport={"width": 1140, "height": round(height * 0.7)})
        images = [f'<img style="margin-right: 20px" src="data:image/png;base64,{base64.b64encode(view).decode()}">' for view in views]
        page.set_content(f'<body style="margin: 0; white-space: nowrap">{"".join(images)}')
        page.screenshot(path=picture.with_stem(f"{picture.stem}-dark"))
        browser.close()


main()
