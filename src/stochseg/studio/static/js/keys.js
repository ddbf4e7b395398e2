/** Keys of a workbench.
 * @module
 */
import { VIEWS } from "./controls.js";
import { announce } from "./dom.js";
import { clampVoxel } from "./planes.js";

/** @typedef {import("./planes.js").Triple} Triple */
/** @typedef {import("./stage.js").Stage} Stage */

/** @param {HTMLElement} root @param {any} store @param {Stage[]} stages @param {(voxel: Triple) => void} click */
export function listenKeys(root, store, stages, click) {
  window.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.closest("input, select, textarea, dialog[open]");
    if (!root.offsetParent || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const isCanvas = target.classList.contains("stage");
    const isUsed = isCanvas && store.values.shown?.isVolume && pressInVolume(event, store, click);
    if (isUsed || press(event.key, store, stages)) event.preventDefault();
  });
}

const MOVES = /** @type {Record<string, number[]>} */ ({
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
});

/** Move the cursor within its slice with Shift, and click it with Enter.
 * @param {KeyboardEvent} event @param {any} store @param {(voxel: Triple) => void} click */
function pressInVolume(event, store, click) {
  const {
    cursor: [z, y, x],
    shown,
  } = store.values;
  const move = event.shiftKey ? MOVES[event.key] : undefined;
  if (move) store.set({ cursor: clampVoxel([z, y + move[0], x + move[1]], shown.shape), cross: true });
  else if (event.key === "Enter") click([z, y, x]);
  else return false;
  return true;
}

/** @param {string} key @param {any} store @param {Stage[]} stages */
function press(key, store, stages) {
  const { shown, raters } = store.values;
  if (!shown) return false;
  if (key === "ArrowRight" || key === "ArrowLeft") return flip(store, key === "ArrowRight" ? 1 : -1);
  if ((key === "ArrowUp" || key === "ArrowDown") && shown.isVolume) stages[0].step(key === "ArrowUp" ? 1 : -1);
  else if (key === "+" || key === "=") stages.forEach((stage) => stage.zoom(1.25));
  else if (key === "-") stages.forEach((stage) => stage.zoom(0.8));
  else if (key === "0") stages.forEach((stage) => stage.reset());
  else if (key === "r" && shown.raters.length) store.set({ raters: !raters });
  else if (key === "Escape") store.set({ reading: null, range: null });
  else if (VIEWS[Number(key) - 1]) store.set({ view: VIEWS[Number(key) - 1][0] });
  else return false;
  return true;
}

/** Show the next sample among the selected ones. @param {any} store @param {number} by */
function flip(store, by) {
  const { shown, sample, view } = store.values;
  const chosen = shown.selected(store.values);
  const indices = shown.drawn.indices.filter((/** @type {number} */ i) => chosen[i]);
  if (!indices.length) return false;
  const at = indices.indexOf(sample);
  const next = view === "sample" ? indices[(at + by + indices.length) % indices.length] : indices[Math.max(0, at)];
  store.set({ view: "sample", sample: next });
  announce(`Sample ${next + 1} of ${shown.samples.length}`);
  return true;
}
