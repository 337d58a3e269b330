// @ts-check
/**
 * Creates elements from data, and updates lists of elements from lists of data. Knows nothing of sessions.
 *
 * Data becomes a text node or an attribute's value. No HTML is ever parsed here or elsewhere. Characters that change
 * the direction of text are written as escapes, so that a name cannot be shown as another one.
 */

const SVG = "http://www.w3.org/2000/svg";
// A new row is highlighted for this long, unless more rows than this appear at once.
const FRESH_MS = 1600;
const FRESH_MOST = 8;
const DIRECTION_CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** @typedef {Node | string | null | false | undefined} Child */
/** @typedef {Record<string, unknown>} Properties  attributes, and listeners as `onclick` */

/** Write bidirectional control characters as escapes. @param {string} text */
export function visible(text) {
  return text.replace(DIRECTION_CONTROLS, (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * @template {Element} T
 * @param {T} node
 * @param {Properties} properties
 * @param {Child[]} children
 * @returns {T}
 */
function completed(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, visible(String(value)));
  }
  append(node, children);
  return node;
}

/**
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  return completed(document.createElement(tag), properties, children);
}

/**
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  return completed(document.createElementNS(SVG, tag), properties, children);
}

/** @param {Element} node @param {Child[]} children */
function append(node, children) {
  for (const child of children) {
    if (typeof child === "string") node.append(visible(child));
    else if (child) node.append(child);
  }
}

/** @param {Element} node @param {...Child} children */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/**
 * Writes only a text that differs, because a screen reader reads a text out again when it is written again.
 *
 * @param {Element} node @param {string} text
 */
export function setText(node, text) {
  const written = visible(text);
  if (node.textContent !== written) node.textContent = written;
}

/** @param {Element} node @param {string} name @param {string | null} value */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== visible(value)) node.setAttribute(name, visible(value));
}

/** An element of index.html. @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/** @type {WeakMap<Element, string>} the data that each row shows */
const shown = new WeakMap();

/**
 * Makes a parent's children those of `items`, by key and in order, and changes only what differs. Focus is preserved.
 *
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {object} how
 * @param {(item: T) => string} how.key
 * @param {(item: T) => HTMLElement} how.create
 * @param {(row: HTMLElement, item: T) => void} how.update
 */
export function reconcile(parent, items, { key, create, update }) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const rows = new Map(Array.from(parent.children, (row) => [/** @type {HTMLElement} */ (row).dataset.key, row]));
  /** @type {HTMLElement[]} */
  const fresh = [];
  const keys = new Set(items.map(key));
  for (const [name, row] of rows) if (!keys.has(name ?? "")) row.remove();
  let next = parent.firstElementChild;
  for (const item of items) {
    let row = /** @type {HTMLElement | undefined} */ (rows.get(key(item)));
    if (!row) {
      row = create(item);
      row.dataset.key = key(item);
      fresh.push(row);
    }
    const written = JSON.stringify(item);
    if (shown.get(row) !== written) {
      update(row, item);
      shown.set(row, written);
    }
    if (row === next) next = row.nextElementSibling;
    else parent.insertBefore(row, next);
  }
  if (rows.size && fresh.length <= FRESH_MOST) fresh.forEach(highlight);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

/** @param {HTMLElement} row */
function highlight(row) {
  row.classList.add("fresh");
  setTimeout(() => row.classList.remove("fresh"), FRESH_MS);
}
