// The TypeScript client of the handshake era.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResultSchema } from "@modelcontextprotocol/sdk/types.js";
import { runPlans } from "./run_plans.mjs";

const transportTo = ({ url, headers, ...command }) =>
  url ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }) : new StdioClientTransport(command);

await runPlans(async (server) => {
  const client = new Client({ name: "typescript-v1", version: "1" });
  const transport = transportTo(server);
  const setProtocolVersion = transport.setProtocolVersion?.bind(transport);
  let version;
  transport.setProtocolVersion = (negotiated) => {
    version = negotiated;
    setProtocolVersion?.(negotiated);
  };
  await client.connect(transport);
  return {
    client,
    handlers: {
      about: () => ({ version, serverInfo: client.getServerVersion(), instructions: client.getInstructions() }),
      list: () => client.listTools(),
      call: ({ tool, arguments: args, timeout }) =>
        client.callTool({ name: tool, arguments: args }, undefined, { timeout }),
      request: ({ method }) => client.request({ method }, ResultSchema),
    },
  };
});
