// The TypeScript client of both eras: legacy, auto, or pinned to a version.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { runPlans } from "./run_plans.mjs";

const anything = { "~standard": { version: 1, vendor: "contextfold", validate: (value) => ({ value }) } };

const transportTo = ({ url, headers, ...command }) =>
  url ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }) : new StdioClientTransport(command);

await runPlans(async (server, mode) => {
  const versionNegotiation = { mode: ["legacy", "auto"].includes(mode) ? mode : { pin: mode } };
  const client = new Client({ name: "typescript-v2", version: "2" }, { versionNegotiation });
  await client.connect(transportTo(server));
  return {
    client,
    handlers: {
      about: () => ({
        version: client.getNegotiatedProtocolVersion(),
        serverInfo: client.getServerVersion(),
        instructions: client.getInstructions(),
      }),
      list: () => client.listTools(),
      call: ({ tool, arguments: args, timeout }) => client.callTool({ name: tool, arguments: args }, { timeout }),
      request: ({ method }) => client.request({ method }, anything),
    },
  };
});
