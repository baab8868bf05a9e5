"""Preprocessor of mdBook: completes two pages, and unlinks files outside of docs.

`reference/commands.md` gets the options of every command, as `vcr man` prints them. The program is
`$VCR`, or cargo builds it. `reference/schemas.md` gets the fields of the schemas that it links.
A link to a file outside of docs becomes the file's name, because the site has only the pages.
"""

import json
import os
import posixpath
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
BUILD = ["cargo", "run", "--release", "--locked", "--quiet", "--package", "vcr", "--features", "full", "--"]
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
SCHEMA = re.compile(r"\]\(\.\./(schemas/[a-z-]+\.schema\.json)\)")


def commands(_page):
    program = [os.environ["VCR"]] if os.environ.get("VCR") else BUILD
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["man", "--format", "markdown", "--out", folder]
        subprocess.run([*program, *arguments], check=True, cwd=DOCS.parent, stdout=subprocess.DEVNULL)
        text = (Path(folder) / "commands.md").read_text()
    # The page has a title and an introduction of its own.
    return text[text.index("\n## ") :]


def schemas(page):
    return "".join(schema_text(path) for path in SCHEMA.findall(page))


def schema_text(path):
    schema = json.loads((DOCS / path).read_text())
    text = f"\n## {schema['title']}\n\n{schema['description']}\n\n[{posixpath.basename(path)}](../{path})\n"
    text += fields_table(schema)
    for name, part in sorted(schema.get("$defs", {}).items()):
        meaning = f"\n{part['description']}\n" if "description" in part else ""
        text += f"\n### {name}\n{meaning}{fields_table(part)}"
    return text


def fields_table(schema):
    rows = list(fields(schema, ""))
    if not rows:
        return f"\nA value of the type {type_text(schema)}.\n"
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n| field | type | meaning |\n|---|---|---|\n{lines}"


def fields(schema, place):
    """Rows of an object's fields, each followed by the fields below it."""
    required = schema.get("required", [])
    for name, field in sorted(schema.get("properties", {}).items()):
        path = f"{place}.{name}" if place else name
        optional = "" if name in required else ", optional"
        meaning = field.get("description", "").replace("|", "\\|").replace("<", "\\<")
        yield f"`{path}`", type_text(field) + optional, meaning
        yield from below(field, path)


def below(field, place):
    yield from fields(field, place)
    for part, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(field.get(part), dict):
            yield from below(field[part], place + suffix)
    for part in field.get("oneOf", []) + field.get("anyOf", []):
        yield from below(part, place)


def type_text(schema):
    if "$ref" in schema:
        return f"*{posixpath.basename(schema['$ref'])}*"
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    parts = schema.get("oneOf") or schema.get("anyOf")
    if parts:
        return " or ".join(map(type_text, parts))
    names = schema.get("type", "any")
    return " or ".join(named(name, schema) for name in ([names] if isinstance(names, str) else names))


def named(name, schema):
    part = schema.get({"array": "items", "object": "additionalProperties"}.get(name))
    return f"{name} of {type_text(part)}" if isinstance(part, dict) else name


def unlinked(page, content):
    def link(match):
        label, target = match.groups()
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target.split("#")[0]))
        if place == "docs" or place.startswith("docs/"):
            return match.group(0)
        return f"{label} (`{place}`)" if place not in label else label

    return LINK.sub(link, content)


GENERATED = {"reference/commands.md": commands, "reference/schemas.md": schemas}


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            page = chapter.get("path")
            if page in GENERATED:
                chapter["content"] += GENERATED[page](chapter["content"])
            if page:
                chapter["content"] = unlinked(page, chapter["content"])
            walk(chapter["sub_items"])


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
_, book = json.load(sys.stdin)
walk(book.get("items", book.get("sections", [])))
json.dump(book, sys.stdout)
