/** Elements without a framework.
 * @module
 */

/**
 * Make an element. Attributes: `class`, `on…` (listeners), `.property`, any other attribute; null and false leave it out.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "rect", "line", "path", "text", "circle", "title"].includes(tag);
  const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith(".")) /** @type {any} */ (element)[key.slice(1)] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children) if (child != null && child !== false) element.append(child);
  return element;
}

/** @param {string} id @returns {any} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element #${id}`);
  return element;
}

/** Tell users of a screen reader. @param {string} text */
export function announce(text) {
  byId("announcer").textContent = text;
}

/**
 * Show a failure with its remedy until it is dismissed or replaced.
 * @param {unknown} error
 * @param {{label: string, run: () => void} | null} [action]  that gets around it
 */
export function showError(error, action = null) {
  if (!(/** @type {any} */ (error).detail)) console.error(error); // a fault of the page, not of a request
  const detail = /** @type {any} */ (error).detail ?? { message: String(/** @type {any} */ (error).message ?? error) };
  const facts = [
    ["Expected", detail.expected],
    ["Got", detail.got],
  ].filter(([, text]) => text);
  const box = h(
    "div",
    { class: "toast", role: "alert" },
    h(
      "div",
      { class: "toast-text" },
      h("strong", {}, detail.message),
      ...facts.map(([name, text]) => h("p", {}, `${name}: ${text}`)),
      detail.remedy && h("p", { class: "remedy" }, detail.remedy),
      action &&
        h(
          "button",
          {
            type: "button",
            class: "secondary",
            onclick: () => {
              box.remove();
              action.run();
            },
          },
          action.label,
        ),
    ),
    h("button", { class: "icon", type: "button", "aria-label": "Dismiss", onclick: () => box.remove() }, "×"),
  );
  byId("toasts").replaceChildren(box);
}

export function clearErrors() {
  byId("toasts").replaceChildren();
}

/** Run an action and show its failure. @param {() => Promise<any>} action */
export async function guarded(action) {
  try {
    return await action();
  } catch (error) {
    if (/** @type {any} */ (error).name !== "AbortError") showError(error);
    return undefined;
  }
}

/**
 * Values that panels share; listeners hear which keys changed, once per turn.
 * @template {object} T
 * @param {T} values
 */
export function createStore(values) {
  /** @type {((changed: Set<string>) => void)[]} */
  const listeners = [];
  /** @type {Set<string> | null} */
  let pending = null;
  return {
    values,
    /** @param {Partial<T>} patch */
    set(patch) {
      const changed = Object.keys(patch).filter(
        (key) => /** @type {any} */ (patch)[key] !== /** @type {any} */ (values)[key],
      );
      if (!changed.length) return;
      Object.assign(values, patch);
      if (pending) {
        changed.forEach((key) => pending?.add(key));
        return;
      }
      pending = new Set(changed);
      queueMicrotask(() => {
        const heard = /** @type {Set<string>} */ (pending);
        pending = null;
        listeners.forEach((listener) => listener(heard));
      });
    },
    /** @param {string[]} keys @param {() => void} listener */
    on(keys, listener) {
      listeners.push((changed) => keys.some((key) => changed.has(key)) && listener());
    },
  };
}
