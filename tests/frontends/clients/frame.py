"""Opens the output of a notebook's cell in headless Chromium and prints, as JSON, what the page in
its frame draws: frame.py OUTPUT.html. The network is shut.
"""

import json
import shutil
import sys
from pathlib import Path

from browser import CHARTS, NAMES
from playwright.sync_api import sync_playwright


def main():
    path = Path(sys.argv[1]).resolve().as_uri()
    binary = next(filter(None, map(shutil.which, NAMES)))
    seen = {"errors": [], "requests": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1000, "height": 900}, offline=True).new_page()
        page.on("console", lambda message: seen["errors"].append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen["errors"].append(str(error)))
        page.on("request", lambda request: seen["requests"].append(request.url))
        page.goto(path)
        frame = page.query_selector("iframe").content_frame()
        frame.wait_for_function("window.vcrCharts !== undefined")
        charts = frame.evaluate(CHARTS)
        seen["charts"] = [{"id": one["id"], "painted": one["painted"]} for one in charts]
        seen["assertions"] = page.eval_on_selector_all("body > table tbody tr", "(rows) => rows.length")
        seen["requests"] = [url for url in seen["requests"] if not url.startswith(("about:", path))]
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
