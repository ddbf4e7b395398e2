/** Controls of a workbench: views, brightness and contrast, slices, threshold.
 * @module
 */
import { number, percent } from "./analysis.js";
import { h } from "./dom.js";

export const VIEWS = [
  ["sample", "Sample", "One sample at a time; left and right arrow keys flip through them"],
  ["contours", "Contours", "Outlines of all samples"],
  ["readings", "Readings", "Outlines of all samples in the colors of their readings; the typical one of each is bold"],
  ["probability", "Probability", "Probability of a class in each pixel"],
  ["entropy", "Entropy", "Where the samples disagree"],
];
const MODES = [
  ["slices", "Slices"],
  ["planes", "Three planes"],
  ["surface", "Surface"],
];
const WINDOWS = [
  ["Lung", -1350, 150],
  ["Soft tissue", -160, 240],
  ["Bone", -500, 1500],
];

/** One of several values of a store. @param {any} store @param {string} name @param {string} key @param {string[][]} options */
function createChoices(store, name, key, options) {
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", title, onclick: () => store.set({ [key]: value }) }, text),
  );
  const mark = () =>
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(store.values[key] === options[i][0])));
  store.on([key], mark);
  mark();
  return h("div", { class: "segmented", role: "group", "aria-label": name }, ...buttons);
}

/** @param {any} store @param {() => void} reset */
export function createToolbar(store, reset) {
  const views = createChoices(store, "View", "view", VIEWS);
  const raters = h(
    "button",
    {
      type: "button",
      class: "toggle",
      hidden: true,
      title: "Show the label maps of the raters (key R)",
      onclick: () => store.set({ raters: !store.values.raters }),
    },
    "Raters",
  );
  const fitted = h(
    "button",
    {
      type: "button",
      class: "toggle",
      title: "Show the whole image again (key 0)",
      onclick: () => {
        store.set({ focus: null });
        reset();
      },
    },
    "Fit",
  );
  const bar = h(
    "div",
    { class: "toolbar" },
    views,
    h("span", { class: "spacer" }),
    raters,
    createWindow(store),
    fitted,
  );
  const update = () => {
    const { shown, mode } = store.values;
    const isIdle = !shown?.samples.length || (shown.isVolume && mode === "surface");
    views.querySelectorAll("button").forEach((/** @type {HTMLButtonElement} */ button) => {
      button.disabled = isIdle;
    });
    raters.hidden = !shown?.raters.length;
    raters.setAttribute("aria-pressed", String(store.values.raters));
  };
  store.on(["shown", "revision", "raters", "mode"], update);
  update();
  return bar;
}

/** Brightness and contrast. @param {any} store */
function createWindow(store) {
  const level = h("input", { type: "range", "aria-label": "Level", oninput: () => apply() });
  const width = h("input", { type: "range", "aria-label": "Width", oninput: () => apply() });
  const texts = [h("output"), h("output")];
  const apply = () =>
    store.set({
      window: {
        low: Number(level.value) - Number(width.value) / 2,
        high: Number(level.value) + Number(width.value) / 2,
      },
    });
  const presets = h("div", { class: "presets" });
  const sync = () => {
    const {
      shown,
      window: { low, high },
    } = store.values;
    if (!shown) return;
    const range = shown.input.range;
    const span = range.high - range.low;
    Object.assign(level, { min: range.low, max: range.high, step: span / 500 });
    Object.assign(width, { min: span / 200, max: 1.5 * span, step: span / 500 });
    level.value = (low + high) / 2;
    width.value = high - low;
    texts[0].textContent = number((low + high) / 2);
    texts[1].textContent = number(high - low);
  };
  store.on(["window", "shown"], sync);
  store.on(["shown"], () => {
    const { shown } = store.values;
    const named = shown?.input.units === "HU" ? WINDOWS : [];
    const own = shown ? [["Default", shown.input.window.low, shown.input.window.high]] : [];
    presets.replaceChildren(
      ...[...own, ...named].map(([name, low, high]) =>
        h("button", { type: "button", onclick: () => store.set({ window: { low, high } }) }, name),
      ),
    );
  });
  const popover = h(
    "details",
    { class: "popover" },
    h("summary", { class: "toggle", title: "Brightness and contrast" }, "Window"),
    h(
      "div",
      { class: "popover-body" },
      h("label", {}, h("span", {}, "Level"), level, texts[0]),
      h("label", {}, h("span", {}, "Width"), width, texts[1]),
      presets,
      h("p", { class: "muted" }, "Or drag the image with the right mouse button or Shift."),
    ),
  );
  window.addEventListener("pointerdown", (event) => {
    if (!popover.contains(/** @type {Node} */ (event.target))) popover.open = false;
  });
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape") popover.open = false;
  });
  return popover;
}

/** Threshold of a map and its class, over the canvas: the image stays where it is. @param {any} store */
export function createThreshold(store) {
  const threshold = h("input", {
    type: "range",
    min: 0.01,
    max: 0.99,
    step: 0.01,
    "aria-label": "Threshold",
    oninput: () => store.set({ threshold: Number(threshold.value) }),
  });
  const text = h("output");
  const kind = h("select", { "aria-label": "Class", onchange: () => store.set({ label: Number(kind.value) }) });
  const kindRow = h("label", { class: "slider" }, h("span", {}, "Class"), kind);
  const root = h(
    "div",
    { class: "threshold", hidden: true },
    kindRow,
    h("label", { class: "slider" }, h("span", {}, "Threshold"), threshold, text),
  );
  const update = () => {
    const { shown, view, mode, threshold: level, label } = store.values;
    const isSurface = mode === "surface" && shown?.isVolume;
    root.hidden = !shown?.samples.length || !(view === "probability" || isSurface);
    kindRow.hidden = (shown?.foreground.length ?? 0) < 2;
    threshold.value = level;
    text.textContent = percent(level);
    kind.value = label;
  };
  store.on(["shown", "revision"], () =>
    kind.replaceChildren(
      ...(store.values.shown?.foreground ?? []).map((/** @type {any} */ k) => h("option", { value: k.index }, k.name)),
    ),
  );
  store.on(["shown", "revision", "view", "mode", "threshold", "label"], update);
  return root;
}

/** Slices of a volume, and how it is shown. @param {any} store */
export function createSliders(store) {
  const slice = h("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": "Slice",
    oninput: () => {
      const [, y, x] = store.values.cursor;
      store.set({ cursor: [Number(slice.value), y, x] });
    },
  });
  const text = h("output");
  const row = h("label", { class: "slider" }, h("span", {}, "Slice"), slice, text);
  const root = h("div", { class: "sliders" }, row, createChoices(store, "Volume", "mode", MODES));
  const update = () => {
    const { shown, mode, cursor } = store.values;
    root.hidden = !shown?.isVolume;
    row.hidden = mode === "surface";
    if (!shown) return;
    slice.max = shown.shape[0] - 1;
    slice.value = cursor[0];
    text.textContent = `${cursor[0] + 1} / ${shown.shape[0]}`;
  };
  store.on(["shown", "mode", "cursor"], update);
  update();
  return root;
}
