"""Opens a page of `vcr run --out` or `vcr report` in headless Chromium and prints, as JSON,
what it draws: browser.py PAGE [SCREENSHOT].

The network is shut: a page that asks for anything is an error of its own.
"""

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# Debian's name first: its package is what the tests install.
NAMES = ["chromium-headless-shell", "chromium", "google-chrome"]

CHARTS = """() => window.vcrCharts.map(({ id, title, plot }) => {
  const { canvas } = plot.ctx;
  const pixels = plot.ctx.getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let i = 3; i < pixels.length; i += 4) painted += pixels[i] > 0;
  const figure = document.getElementById(id);
  return {
    id, title, painted, pixels: pixels.length / 4,
    labels: plot.series.slice(1).map((one) => one.label),
    data: plot.data.map((column) => Array.from(column)),
    text: figure.querySelector("[role=img]").getAttribute("aria-label"),
    scales: { x: [plot.scales.x.min, plot.scales.x.max], y: [plot.scales.y.min, plot.scales.y.max] },
  };
})"""

# The rows of all tables of a section, cell by cell.
TABLE = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def main():
    path = Path(sys.argv[1]).resolve().as_uri()
    screenshot = sys.argv[2] if len(sys.argv) > 2 else None
    binary = next(filter(None, map(shutil.which, NAMES)))
    seen = {"errors": [], "requests": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light", offline=True)
        page = context.new_page()
        page.on("console", lambda message: seen["errors"].append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen["errors"].append(str(error)))
        page.on("request", lambda request: seen["requests"].append(request.url) if request.url != path else None)
        page.goto(path)
        rows = lambda section: page.eval_on_selector_all(f"{section} tbody tr", TABLE)
        seen["title"] = page.title()
        seen["sections"] = page.eval_on_selector_all("h2", "(all) => all.map((one) => one.textContent)")
        for section in [".assertions", ".runs", "#distributions", "#timelines", "#phases", "#slowest", "#engines"]:
            seen[section] = rows(section)
        seen["source"] = page.eval_on_selector_all("pre code", "(all) => all.map((one) => one.textContent)")
        seen["scripted"] = page.evaluate("window.scripted ?? null")
        seen["charts"] = page.evaluate(CHARTS)
        seen["lives"] = page.eval_on_selector_all(".life", "(all) => all.map((one) => one.getAttribute('aria-label'))")
        options = page.eval_on_selector_all("#other option", "(all) => all.map((one) => one.textContent)")
        seen["others"] = options
        if len(options) > 2:
            page.select_option("#other", index=2)
            seen["compared"] = page.evaluate(CHARTS)
            seen["comparison"] = rows("#comparison")
        seen["light"] = background(page)
        page.emulate_media(color_scheme="dark")
        seen["dark"] = background(page)
        seen["dark_charts"] = len(page.evaluate(CHARTS))
        seen["paper"] = len(page.pdf())
        page.set_viewport_size({"width": 420, "height": 800})
        seen["narrow"] = page.evaluate("document.documentElement.scrollWidth")
        if screenshot:
            # Small enough for a page of documentation.
            small = browser.new_context(viewport={"width": 1200, "height": 1750}, device_scale_factor=0.7)
            picture = small.new_page()
            picture.goto(path)
            picture.screenshot(path=screenshot)
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
