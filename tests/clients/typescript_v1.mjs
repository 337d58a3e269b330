// The TypeScript client of the handshake era.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { ResultSchema } from "@modelcontextprotocol/sdk/types.js";
import { converse } from "./converse.mjs";

await converse(async (server) => {
  const client = new Client({ name: "typescript-v1", version: "1" });
  const transport = new StdioClientTransport(server);
  let version;
  transport.setProtocolVersion = (negotiated) => {
    version = negotiated;
  };
  await client.connect(transport);
  return {
    client,
    doing: {
      about: () => ({ version, serverInfo: client.getServerVersion(), instructions: client.getInstructions() }),
      list: () => client.listTools(),
      call: ({ tool, arguments: given }) => client.callTool({ name: tool, arguments: given }),
      request: ({ method }) => client.request({ method }, ResultSchema),
    },
  };
});
