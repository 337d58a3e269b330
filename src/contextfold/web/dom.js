// @ts-check
/**
 * Elements from data, and lists of elements kept in step with lists of data. Knows nothing of sessions.
 *
 * What comes from outside becomes a text node or an attribute's value. No markup is ever parsed here or elsewhere.
 */

const SVG = "http://www.w3.org/2000/svg";
const FRESH_MS = 1600; // how long a new row stands out
const FRESH_MOST = 8; // more at once were asked for, and are no news

/** @typedef {Node | string | null | false | undefined} Child */
/** @typedef {Record<string, unknown>} Properties  attributes, and listeners as `onclick` */

/**
 * @template {Element} T
 * @param {T} node
 * @param {Properties} properties
 * @param {Child[]} children
 * @returns {T}
 */
function furnish(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
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
  return furnish(document.createElement(tag), properties, children);
}

/**
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), properties, children);
}

/** @param {Element} node @param {Child[]} children */
function append(node, children) {
  for (const child of children) if (child || child === "") node.append(child);
}

/** @param {Element} node @param {...Child} children */
export function fill(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

/**
 * Write only what differs: a text that is written again is read out again.
 *
 * @param {Element} node @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {Element} node @param {string} name @param {string | null} value */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** An element of index.html. @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/** @type {WeakMap<Element, string>} what each row shows */
const shown = new WeakMap();

/**
 * Make a parent's children those of `items`: by key, in order, touching only what changed. Focus stays where it was.
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
