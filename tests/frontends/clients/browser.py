"""Opens a page of vcr in headless Chromium and prints, as JSON, what it draws, and what does not
fit at three widths, light and dark: browser.py PAGE.

The network is shut: a page that asks for anything is an error of its own.
"""

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# Debian's name first: its package is what the tests install.
NAMES = ["chromium-headless-shell", "chromium", "google-chrome"]

CHARTS = """() => (window.vcrCharts ?? []).map(({ id, title, plot }) => {
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

# Ends when the page has followed a change of its width: that comes before the next frame.
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# Elements that reach over the side of the page, or whose text is cut off. Boxes that scroll may hide
# what is in them; drawn bars and cells have no text.
OVERFLOWING = """() => [...document.querySelectorAll("main *")].filter((one) => {
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  for (let parent = one; parent && parent.tagName !== "MAIN"; parent = parent.parentElement) if (scrolls(parent)) return false;
  if (one.closest(".tip, [hidden]") || !one.getClientRects().length) return false;
  const { right, left } = one.getBoundingClientRect();
  const isCut = getComputedStyle(one).overflowX === "hidden" && one.scrollWidth > one.clientWidth + 1 && one.textContent.trim();
  return right > innerWidth + 0.5 || left < -0.5 || isCut;
}).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""

# The lowest contrast of a text with what is behind it, and the text.
CONTRAST = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((one) => one / 255).map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opaque = (color) => !/rgba\\(.*, 0(\\.\\d+)?\\)|color\\(|transparent/.test(color);
  let worst = [21, ""];
  for (const one of document.querySelectorAll("main *")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) || !one.getClientRects().length) continue;
    if (one.closest("td.heat, .u-off")) continue;
    let behind = one;
    while (behind.parentElement && !opaque(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const [a, b] = [light(getComputedStyle(one).color), light(getComputedStyle(behind).backgroundColor)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[0]) worst = [contrast, one.textContent.slice(0, 40)];
  }
  return worst;
}"""


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def main():
    path = Path(sys.argv[1]).resolve().as_uri()
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
        seen["banner"] = page.eval_on_selector_all(".banner > *", "(all) => all.map((one) => one.textContent)")
        seen["tiles"] = page.eval_on_selector_all(
            ".tiles:not([hidden]) > li", "(all) => all.map((one) => [...one.children].map((child) => child.textContent))"
        )
        if page.locator("#run option").count() > 1:
            # The first run, whichever the page shows.
            page.select_option("#run", index=0)
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
        seen["layouts"] = []
        for scheme in ["light", "dark"]:
            page.emulate_media(color_scheme=scheme)
            for width in [1280, 768, 390]:
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate(DRAWN)
                seen["layouts"].append({
                    "width": width,
                    "scheme": scheme,
                    "page": page.evaluate("document.documentElement.scrollWidth"),
                    "overflowing": page.evaluate(OVERFLOWING),
                    "contrast": page.evaluate(CONTRAST),
                })
        page.set_viewport_size({"width": 1280, "height": 900})
        page.evaluate(DRAWN)
        seen["tooltips"] = {}
        for chart in page.evaluate("(window.vcrCharts ?? []).map(({ id }) => id)"):
            over = page.locator(f"#{chart} .u-over").first
            over.scroll_into_view_if_needed()
            box = over.bounding_box()
            for share in [0.5, 0.4]:
                page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
            seen["tooltips"][chart] = page.locator(f"#{chart} .tip").inner_text()
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
