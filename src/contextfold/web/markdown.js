// @ts-check
/**
 * Shows Markdown as elements: headings, paragraphs, lists, quotes, code, tables, and emphasis and code in a line. What it
 * does not know stays text. Links and pictures are shown by their words, because a document may lead anywhere, and HTML
 * stays as it is written.
 */

import { el } from "./dom.js";
import { table } from "./pieces.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}#{1,6}\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)(?:[-*+]|\d{1,9}([.)]))\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*)\*|!?\[([^\]]*)\]\([^)\s]*(?:\s+"[^"]*")?\)/g;
const INDENT = 2;

/** @param {string} text @returns {HTMLElement[]} */
export function markdown(text) {
  const lines = text.split("\n");
  /** @type {HTMLElement[]} */
  const blocks = [];
  let at = 0;

  /** The following lines for which a test holds. @param {(line: string) => boolean} holds */
  function take(holds) {
    const from = at;
    while (at < lines.length && holds(lines[at])) at += 1;
    return lines.slice(from, at);
  }

  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line)?.[1];
    const heading = HEADING.exec(line);
    if (fence) {
      at += 1;
      blocks.push(codeBlock(take((each) => !each.trimStart().startsWith(fence)).join("\n")));
      at += 1;
    } else if (heading) {
      at += 1;
      blocks.push(el("p", { class: "heading" }, ...inline(heading[1])));
    } else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const [head, , ...rows] = take((each) => each.includes("|")).map(cells);
      const shown = table(head, rows.map((row) => el("tr", {}, ...row.map((cell) => el("td", {}, ...inline(cell))))));
      blocks.push(el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, shown));
    } else if (ITEM.test(line)) {
      blocks.push(list(take((each) => ITEM.test(each) || /^\s+\S/.test(each))));
    } else if (line.startsWith(">")) {
      const quoted = take((each) => each.startsWith(">")).map((each) => each.replace(/^> ?/, ""));
      blocks.push(el("blockquote", {}, ...markdown(quoted.join("\n"))));
    } else if (!line.trim()) {
      at += 1;
    } else {
      const [first, ...more] = [lines[at++], ...take((each) => each.trim() !== "" && !startsBlock(each))];
      blocks.push(el("p", {}, ...inline([first, ...more].join("\n"))));
    }
  }
  return blocks;
}

/** @param {string} text */
export function codeBlock(text) {
  return el("pre", { class: "text code", tabindex: "0" }, text);
}

/** @param {string} line */
function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || line.startsWith(">");
}

/** @param {string} line */
function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

/** A list of one level; deeper items are indented. @param {string[]} lines */
function list(lines) {
  const items = /** @type {{ depth: number, text: string }[]} */ ([]);
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) items.push({ depth: Math.floor(item[1].length / INDENT), text: item[3] });
    else items[items.length - 1].text += `\n${line.trim()}`;
  }
  const isNumbered = ITEM.exec(lines[0])?.[2] !== undefined;
  return el(
    isNumbered ? "ol" : "ul",
    {},
    ...items.map(({ depth, text }) => el("li", depth ? { class: "deeper" } : {}, ...inline(text))),
  );
}

/** @param {string} text @returns {(Node | string)[]} */
function inline(text) {
  /** @type {(Node | string)[]} */
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, strong, underlined, emphasised, words] = match;
    parts.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (code !== undefined) parts.push(el("code", {}, code));
    else if (strong ?? underlined) parts.push(el("strong", {}, ...inline(strong ?? underlined)));
    else if (emphasised !== undefined) parts.push(el("em", {}, ...inline(emphasised)));
    else parts.push(...inline(words));
  }
  parts.push(text.slice(end));
  return parts;
}
