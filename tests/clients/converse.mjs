// Talks to servers through a client: each line of stdin is a plan, and what the client made of it is a line of stdout.
import { createInterface } from "node:readline";

// An HTTP failure is known by its status, whatever else the client calls it.
const refusal = ({ status, code, message, data }) => ({ refused: { code: status ?? code, message, data } });

export async function converse(connect) {
  for await (const line of createInterface({ input: process.stdin })) {
    const outcomes = await follow(connect, JSON.parse(line));
    process.stdout.write(`${JSON.stringify(outcomes)}\n`);
  }
}

async function follow(connect, { mode, server, together, operations }) {
  let connected;
  try {
    connected = await connect(server, mode);
  } catch (error) {
    return [refusal(error)];
  }
  const { client, doing } = connected;
  const perform = async ({ do: what, ...operation }) => {
    try {
      return await doing[what](operation);
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
