"""Preprocessor of mdBook: links of pages to files outside of docs become their names.

The site has the pages alone; in a checkout the links lead to the files.
"""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def replaced(page):
    def link(match):
        label, target = match.groups()
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.split("#")[0]))
        if place == "docs" or place.startswith("docs/"):
            return match.group(0)
        return f"{label} (`{place}`)" if place not in label else label

    return link


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("path"):
                chapter["content"] = LINK.sub(replaced(chapter["path"]), chapter["content"])
            walk(chapter["sub_items"])


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
_, book = json.load(sys.stdin)
walk(book.get("items", book.get("sections", [])))
json.dump(book, sys.stdout)
