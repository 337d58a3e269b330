// Talks to a server through a client: operations come as JSON on stdin, what the client made of each goes to stdout.
import { text } from "node:stream/consumers";

export async function converse(connect) {
  const [mode, command, ...args] = process.argv.slice(2);
  const { env, together, operations } = JSON.parse(await text(process.stdin));
  const refusal = ({ code, message }) => ({ refused: { code, message } });
  let connected;
  try {
    connected = await connect({ command, args, env }, mode);
  } catch (error) {
    process.stdout.write(JSON.stringify([refusal(error)]));
    return;
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
  process.stdout.write(JSON.stringify(outcomes));
}
