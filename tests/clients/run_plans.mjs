// Runs plans with an MCP client. Each line of stdin is a plan; its outcomes are written as one line to stdout.
import { createInterface } from "node:readline";

// An HTTP error is reported by its status, whatever code the client gives it.
const refusal = ({ status, code, message, data }) => ({ refused: { code: status ?? code, message, data } });

export async function runPlans(connect) {
  for await (const line of createInterface({ input: process.stdin })) {
    const outcomes = await runPlan(connect, JSON.parse(line));
    process.stdout.write(`${JSON.stringify(outcomes)}\n`);
  }
}

async function runPlan(connect, { mode, server, together, operations }) {
  let connected;
  try {
    connected = await connect(server, mode);
  } catch (error) {
    return [refusal(error)];
  }
  const { client, handlers } = connected;
  const perform = async ({ do: name, ...operation }) => {
    try {
      return await handlers[name](operation);
    } catch (error) {
      return refusal(error);
    }
  };
  const outcomes = [];
  if (together) outcomes.push(...(await Promise.all(operations.map(perform))));
  else for (const operation of operations) outcomes.push(await perform(operation));
  await client.close();
  return outcomes;
}
