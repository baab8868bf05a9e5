#!/usr/bin/env bash
# Writes schemas.jsonl: schemas that zod, pydantic and tools of MCP servers emit, and what vLLM says of each.
#
#   tests/frontends/schemas/generate.sh VENV TOKENIZER_FOLDER
#
# VENV is a virtual environment with vLLM for CPUs (0.33.0 was taken) and pydantic. The packages of npm come into a
# folder of their own. Each line has the schema's name, the schema, whether xgrammar and llguidance take it, and whether
# vLLM does, whose backend is `auto`, or else the reason. rust_verdicts.py adds what vLLM's Rust frontend says.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
venv=$1 tokenizer=$2 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

npm install --silent --no-audit --no-fund --ignore-scripts --before 2026-11-26 --prefix "$work" \
  zod@4.6.7 zod-to-json-schema@3.25.2 @modelcontextprotocol/sdk @modelcontextprotocol/server-everything \
  @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory \
  @modelcontextprotocol/server-sequential-thinking @playwright/mcp @upstash/context7-mcp @notionhq/notion-mcp-server
cp "$here"/*.mjs "$work"
cd "$work"

# tools NAME PROGRAM ARGUMENTS...: the tools of a server of Node.js.
tools() { node tools.mjs "$1" node "node_modules/$2" "${@:3}" >"mcp-$1.jsonl"; }

"$venv/bin/python" "$here/pydantic_models.py" >pydantic.jsonl
tools everything @modelcontextprotocol/server-everything/dist/index.js
tools filesystem @modelcontextprotocol/server-filesystem/dist/index.js /tmp
tools memory @modelcontextprotocol/server-memory/dist/index.js
tools sequential-thinking @modelcontextprotocol/server-sequential-thinking/dist/index.js
tools playwright @playwright/mcp/cli.js
tools context7 @upstash/context7-mcp/dist/index.js
tools notion @notionhq/notion-mcp-server/bin/cli.mjs
node zod.mjs >zod.jsonl 2>/dev/null
"$venv/bin/python" "$here/verdicts.py" "$tokenizer" pydantic.jsonl mcp-*.jsonl zod.jsonl \
  >"$here/schemas.jsonl"
