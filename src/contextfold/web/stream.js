// @ts-check
/**
 * Receives the daemon's events over one connection, which is opened again whenever it breaks.
 *
 * It does not use EventSource, which cannot send an Authorization header. Knows server-sent events and when to
 * reconnect, not what an event means.
 */

import { ApiError, request } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
// The daemon sends a comment every 15 s; a connection that has missed three is broken.
const SILENCE_MS = 45_000;
const LONGEST_MESSAGE = 1 << 20;
const BAD_CURSOR = 400;

/** @typedef {{ id: string | null, event: string, data: string }} Message */
/** @typedef {"idle" | "connecting" | "live" | "lost"} Connection */

export class EventStream {
  /** @type {AbortController | null} */
  #running = null;

  /**
   * @param {object} listeners
   * @param {(event: Record<string, any>) => void} listeners.onEvent
   * @param {() => void} listeners.onReopened  events may have been missed, so everything must be read again
   * @param {(state: Connection) => void} listeners.onState
   * @param {(error: ApiError) => void} listeners.onUnauthorized
   */
  constructor(listeners) {
    this.listeners = listeners;
  }

  /**
   * Follow a session, or all of them, from a cursor on. Without one, `onReopened` is called.
   *
   * @param {string | null} sessionId @param {string | null} after
   */
  follow(sessionId, after) {
    this.close();
    this.#running = new AbortController();
    this.#run(sessionId, after, this.#running.signal);
  }

  close() {
    this.#running?.abort();
    this.#running = null;
    this.listeners.onState("idle");
  }

  /** @param {string | null} sessionId @param {string | null} after @param {AbortSignal} stopped */
  async #run(sessionId, after, stopped) {
    const path = sessionId === null ? "/v1/events" : `/v1/events?session=${encodeURIComponent(sessionId)}`;
    let wait = FIRST_WAIT_MS;
    let isFirst = after !== null;
    this.listeners.onState("connecting");
    while (!stopped.aborted) {
      try {
        for await (const message of messages(path, after, stopped)) {
          if (stopped.aborted) return;
          after = message.id ?? after;
          if (message.event === "following") {
            this.listeners.onState("live");
            wait = FIRST_WAIT_MS;
            if (!isFirst) this.listeners.onReopened();
            isFirst = false;
          } else {
            this.listeners.onEvent({ event: message.event, ...JSON.parse(message.data) });
          }
        }
      } catch (error) {
        if (stopped.aborted) return;
        if (error instanceof ApiError && error.isUnauthorized) return this.listeners.onUnauthorized(error);
        // The cursor belongs to another store.
        if (error instanceof ApiError && error.status === BAD_CURSOR) after = null;
      }
      if (stopped.aborted) return;
      isFirst = false;
      this.listeners.onState("lost");
      await pause(wait * (0.75 + Math.random() / 2), stopped);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }
}

/** @param {number} ms @param {AbortSignal} stopped */
function pause(ms, stopped) {
  return new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer);
      stopped.removeEventListener("abort", go);
      removeEventListener("online", go);
      resolve(undefined);
    };
    const timer = setTimeout(go, ms);
    stopped.addEventListener("abort", go);
    addEventListener("online", go);
  });
}

/** The messages of one connection. @param {string} path @param {string | null} after @param {AbortSignal} stopped */
async function* messages(path, after, stopped) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(after === null ? {} : { "Last-Event-ID": after }) };
    const answer = await request(path, { headers, signal: AbortSignal.any([stopped, silence.signal]) });
    const reader = /** @type {ReadableStream} */ (answer.body).pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const blocks = (text + value).replaceAll("\r\n", "\n").split("\n\n");
      text = blocks.pop() ?? "";
      if (text.length > LONGEST_MESSAGE) throw new Error("A message is too long.");
      for (const block of blocks) {
        const message = parsed(block);
        if (message) yield message;
      }
    }
  } finally {
    clearTimeout(timer);
    // The connection must not outlive the generator.
    silence.abort();
  }
}

/** @param {string} block @returns {Message | null} null for a comment */
function parsed(block) {
  /** @type {Message} */
  const message = { id: null, event: "message", data: "" };
  let isMessage = false;
  for (const line of block.split("\n")) {
    const [, field, value] = /^(id|event|data): ?(.*)$/.exec(line) ?? [];
    if (field === undefined) continue;
    isMessage = true;
    if (field === "data") message.data += message.data ? `\n${value}` : value;
    else message[/** @type {"event"} */ (field)] = value;
  }
  return isMessage ? message : null;
}
