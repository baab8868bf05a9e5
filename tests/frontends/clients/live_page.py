"""Drives the page of a server in headless Chromium, as people do, and prints, as JSON, what they see: live_page.py
HOST:PORT [play|proxy].

A client of the server has a conversation and watches it appear; then a fault is injected, and it meets it. With `play`
the page is one of engines whose frontend is elsewhere, and has had one request; with `proxy` it is one of a proxy, whose
engines are elsewhere, and has had some generations.
"""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

from browser import CONTRAST, DRAWN, NAMES, OVERFLOWING
from playwright.sync_api import sync_playwright

ADDRESS = sys.argv[1]
URL = f"http://{ADDRESS}/_vcr/"
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}}


def asked(text):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": 12, "stream": True, "seed": 7, "tools": [TOOL], "tool_choice": "none"}
    request = urllib.request.Request(f"http://{ADDRESS}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, text_of(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.code, ""


def text_of(stream):
    events = [json.loads(line[5:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


def texts(page, selector):
    return page.eval_on_selector_all(selector, "(all) => all.map((one) => one.textContent)")


def until(page, expression):
    """The page's policy lets no text become a script, which is how Playwright waits for functions."""
    while not page.evaluate(expression):
        page.wait_for_timeout(50)


def main():
    binary = next(filter(None, map(shutil.which, NAMES)))
    seen = {"errors": [], "elsewhere": [], "layouts": []}
    drive = {"play": play, "proxy": proxy}.get(sys.argv[-1], serve)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light").new_page()
        page.on("console", lambda message: seen["errors"].append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: seen["errors"].append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(URL) else seen["elsewhere"].append(request.url))
        page.goto(URL)
        drive(page, seen)
        browser.close()
    print(json.dumps(seen))


def play(page, seen):
    page.wait_for_selector("#list .status.passed")
    seen["row"] = page.inner_text("#list li:has(.passed)")
    page.click("#list li:has(.passed) a")
    page.wait_for_selector(".blocks")
    seen["tools"] = texts(page, ".tools button")
    seen["sections"] = texts(page, "section h2")
    seen["phases"] = page.get_attribute(".bar", "aria-label")
    page.goto(URL + "#controls")
    page.wait_for_selector("#control-pause")
    seen["controls"] = texts(page, ".control h3")


def proxy(page, seen):
    page.wait_for_selector("#list .status.passed")
    seen["scenarios"] = []
    for number in json.loads(page.evaluate("JSON.stringify([...document.querySelectorAll('#list a')].map((one) => one.hash))")):
        page.goto(URL + number)
        page.wait_for_selector("#which")
        page.evaluate("delete window.vcrCopied")
        page.click("text=copy as scenario")
        until(page, "window.vcrCopied !== undefined")
        seen["scenarios"].append(page.evaluate("window.vcrCopied"))


def serve(page, seen):
    page.wait_for_selector("#none:not(:empty)")
    seen["before"] = page.inner_text("#none")
    # A conversation appears, and is opened.
    _, seen["answer"] = asked("How are you?")
    page.wait_for_selector("#list .status.passed")
    seen["row"] = page.inner_text("#list li")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#messages .answer")
    seen["messages"] = texts(page, "#messages > li")
    seen["phases"] = page.get_attribute(".bar", "aria-label")
    seen["chart"] = page.evaluate("""() => {
      const { ctx } = window.vcrCharts[0].plot;
      return ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height).data.filter((one, i) => i % 4 === 3 && one > 0).length;
    }""")
    seen["tools"] = texts(page, "summary b")
    page.click("text=copy as curl")
    until(page, "window.vcrCopied !== undefined")
    command = page.evaluate("window.vcrCopied")
    seen["blocks"] = page.inner_text(".blocks")
    for name in ["scenario", "capture"]:
        page.evaluate("delete window.vcrCopied")
        page.click(f"text=copy as {name}")
        until(page, "window.vcrCopied !== undefined")
        seen[name] = page.evaluate("window.vcrCopied")
    seen["curl"] = text_of(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    # A fault is injected, and happens once.
    page.click("#tab-controls")
    form = "#control-client-faults"
    page.fill(f"{form} input[name=fault]", "status:code=503")
    page.select_option(f"{form} select[name=once]", label="once")
    page.click(f"{form} button")
    page.wait_for_selector("#client-faults-active code")
    seen["active"] = texts(page, "#client-faults-active code")
    seen["statuses"] = [asked("Once more?")[0], asked("And now?")[0]]
    page.click("#tab-requests")
    page.wait_for_selector("#list em.failed")
    seen["faulty"] = page.inner_text("#list li:has(em.failed)")
    page.select_option("select[aria-label=status]", "faults")
    seen["filtered"] = page.locator("#list li").count()
    page.select_option("select[aria-label=status]", "all")
    page.keyboard.press("Escape")
    # Two are compared.
    until(page, "document.querySelectorAll('#list li').length === 4")
    for place in [0, 3]:
        page.locator("#list input").nth(place).check()
    page.click("#compare")
    page.wait_for_selector("del")
    seen["compared"] = page.inner_text("#shown")
    compared = page.url
    page.goto(URL + "#controls")
    page.click("#client-faults-active button")
    page.wait_for_selector("#client-faults-active .note")
    seen["removed"] = texts(page, "#client-faults-active li")
    page.locator("#control-pause button").click()
    page.wait_for_selector("#control-pause .answer.passed")
    page.goto(URL + "#engine")
    until(page, "document.querySelector('#engine-now tbody td')?.textContent.includes('paused')")
    seen["paused"] = page.inner_text("#engine-now tbody td")
    until(page, "(window.vcrCharts ?? []).length > 4")
    seen["engine_charts"] = page.evaluate("window.vcrCharts.map(({ id }) => id)")
    seen["states"] = page.inner_text("#engine-now .blocks span")
    for place in ["#requests", "#requests/1", compared.removeprefix(URL), "#engine", "#controls"]:
        page.goto(URL + place)
        page.wait_for_selector({"#requests": "#list li", "#engine": "#engine-charts figure", "#controls": ".faults li"}.get(place, "#which"))
        for scheme in ["light", "dark"]:
            page.emulate_media(color_scheme=scheme)
            for width in [1280, 390]:
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate(DRAWN)
                seen["layouts"].append({
                    "place": re.sub(r"\d+", "N", place), "width": width, "scheme": scheme,
                    "page": page.evaluate("document.documentElement.scrollWidth"),
                    "overflowing": page.evaluate(OVERFLOWING), "contrast": page.evaluate(CONTRAST),
                })


if __name__ == "__main__":
    main()
