// Runs the Inspector's command line many times in one process, because loading it takes longer than running it.
// Each line of stdin is {argv, home}; it is answered with a line that has the exit code and the output.
import { createInterface } from "node:readline";
import { handleError, runCli } from "@modelcontextprotocol/inspector/clients/cli/build/index.js";

class Exit extends Error {
  constructor(code) {
    super(`exit ${code}`);
    this.code = code;
  }
}

async function exitCode(argv) {
  process.exitCode = undefined;
  try {
    // The program's own launcher does the same.
    await runCli(argv).catch(handleError);
  } catch (exit) {
    if (!(exit instanceof Exit)) throw exit;
    return exit.code;
  }
  return process.exitCode ?? 0;
}

/** Collects what is written to a stream. The returned function restores the stream and returns the text. */
function collect(stream) {
  const write = stream.write;
  let text = "";
  stream.write = (chunk, encoding, callback) => {
    text += chunk;
    (typeof encoding === "function" ? encoding : callback)?.();
    return true;
  };
  return () => {
    stream.write = write;
    return text;
  };
}

process.exit = (code) => {
  throw new Exit(code ?? process.exitCode ?? 0);
};
for await (const line of createInterface({ input: process.stdin })) {
  const { argv, home } = JSON.parse(line);
  process.env.HOME = home;
  const [stdout, stderr] = [collect(process.stdout), collect(process.stderr)];
  const code = await exitCode(["node", "mcp-inspector", ...argv]);
  const answer = { code, stdout: stdout(), stderr: stderr() };
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exitCode = 0;
