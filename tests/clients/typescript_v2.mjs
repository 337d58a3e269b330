// The TypeScript client of both eras: legacy, auto, or pinned to a version.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { converse } from "./converse.mjs";

const anything = { "~standard": { version: 1, vendor: "contextfold", validate: (value) => ({ value }) } };

const transportTo = ({ url, headers, ...command }) =>
  url ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }) : new StdioClientTransport(command);

await converse(async (server, mode) => {
  const versionNegotiation = { mode: ["legacy", "auto"].includes(mode) ? mode : { pin: mode } };
  const client = new Client({ name: "typescript-v2", version: "2" }, { versionNegotiation });
  await client.connect(transportTo(server));
  return {
    client,
    doing: {
      about: () => ({
        version: client.getNegotiatedProtocolVersion(),
        serverInfo: client.getServerVersion(),
        instructions: client.getInstructions(),
      }),
      list: () => client.listTools(),
      call: ({ tool, arguments: given, timeout }) => client.callTool({ name: tool, arguments: given }, { timeout }),
      request: ({ method }) => client.request({ method }, anything),
    },
  };
});
