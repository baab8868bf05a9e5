// Schemas of the tools of servers with the Model Context Protocol: `node tools.mjs NAME COMMAND ARGUMENTS...`.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [name, command, ...args] = process.argv.slice(2);
const client = new Client({ name: "schemas", version: "1" });
await client.connect(new StdioClientTransport({ command, args, stderr: "ignore", env: { ...process.env } }));
for (let cursor; ; ) {
  const page = await client.listTools({ cursor });
  for (const tool of page.tools) {
    console.log(JSON.stringify({ name: `mcp ${name}: ${tool.name}`, schema: tool.inputSchema }));
  }
  cursor = page.nextCursor;
  if (!cursor) break;
}
await client.close();
