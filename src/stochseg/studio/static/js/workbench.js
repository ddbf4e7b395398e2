/** Canvas, views and results of one image: the middle and the right of the page.
 * @module
 */
import { bytes, capital, number, percent, plural } from "./analysis.js";
import { url } from "./api.js";
import { HEAT_GRADIENT, classColor, readingColor } from "./colors.js";
import { createSliders, createThreshold, createToolbar } from "./controls.js";
import { createStore, h } from "./dom.js";
import { listenKeys } from "./keys.js";
import { createMeasure } from "./measure.js";
import { createCards, createStrip } from "./readings.js";
import { Stage } from "./stage.js";
import { createSurface } from "./surface.js";

/** @typedef {import("./case.js").Case} Case */
/** @typedef {import("./planes.js").Triple} Triple */

const LEGEND = 3; // readings that are named over the image; the cards name all

const EMPTY = {
  /** @type {Case | null} */
  shown: null,
  revision: 0, // counts samples and results that arrived
  expected: 0, // samples on their way
  view: "contours",
  mode: "slices",
  sample: 0,
  /** @type {number | null} */
  reading: null,
  label: 1,
  threshold: 0.5,
  /** @type {string | null} */
  measure: null,
  /** @type {{low: number, high: number} | null} */
  range: null,
  raters: false,
  cross: false,
  cursor: /** @type {Triple} */ ([0, 0, 0]),
  window: { low: 0, high: 255 },
  /** @type {{shape: Triple, offset: Triple} | null} */
  focus: null,
};

/**
 * @param {HTMLElement} root
 * @param {{click?: (voxel: Triple) => boolean}} [on]  true if the click is used up
 */
export function createWorkbench(root, on = {}) {
  const store = createStore({ ...EMPTY });
  const click = (/** @type {Triple} */ voxel) => {
    if (!on.click?.(voxel) && store.values.shown?.isVolume) store.set({ cursor: voxel, cross: true });
  };
  const readout = h("div", { class: "readout", "aria-hidden": "true" });
  const hover = (/** @type {Triple | null} */ voxel) => {
    readout.textContent = voxel ? readOut(store.values.shown, voxel) : "";
  };
  const stages = [0, 1, 2].map((plane) => new Stage(store, plane, { click, hover }));
  const surface = createSurface(store);
  const caption = h("div", { class: "caption" });
  const overlay = h("div", { class: "overlay" });
  const area = h(
    "div",
    { class: "stage-area" },
    ...stages.map(({ element }) => element),
    surface.element,
    caption,
    readout,
    createThreshold(store),
    overlay,
  );
  const strip = h("div", { class: "strip", role: "group", "aria-label": "Samples" });
  const side = createSide(store);
  root.replaceChildren(
    h(
      "div",
      { class: "bench-main" },
      createToolbar(store, () => stages.forEach((s) => s.reset())),
      area,
      createSliders(store),
      strip,
    ),
    side,
  );
  createStrip(strip, store);

  const redraw = () => stages.forEach((stage) => stage.element.hidden || stage.draw());
  store.on(Object.keys(EMPTY), redraw);
  let input = "";
  store.on(["shown", "focus"], () => {
    const { shown, focus } = store.values;
    // Samples drawn anew leave the image where it is.
    if (shown?.input.id !== input || focus) stages.forEach((stage) => stage.reset());
    input = shown?.input.id ?? "";
  });
  store.on(["mode", "shown"], () => {
    const { mode, shown } = store.values;
    area.dataset.mode = shown?.isVolume ? mode : "slices";
    stages.forEach(({ element, plane }) => {
      element.hidden = mode === "surface" ? true : plane > 0 && area.dataset.mode !== "planes";
    });
    surface.element.hidden = area.dataset.mode !== "surface";
    if (area.dataset.mode === "surface") surface.show();
  });
  store.on(["shown", "revision", "view", "mode", "sample", "reading", "label", "threshold"], () => {
    caption.replaceChildren(...describe(store.values));
    stages[0].canvas.setAttribute(
      "aria-label",
      ["Image", ...[...caption.children].map(({ textContent }) => textContent)].join(", "),
    );
  });
  listenKeys(root, store, stages, click);
  /** On a phone, where one column holds everything. */
  const reveal = () => {
    if (window.matchMedia("(max-width: 820px)").matches) root.querySelector(".bench-main")?.scrollIntoView();
  };
  return { store, overlay, stages, reveal, open: (/** @type {Case} */ shown) => open(store, shown) };
}

/** Show a case from the start, or its first samples. @param {any} store @param {Case} shown */
function open(store, shown) {
  const isSame = store.values.shown?.input.id === shown.input.id;
  const box = shown.isVolume ? shown.markedBox() : null;
  const { cursor: before } = store.values;
  const isInside = isSame && box && box.low.every((low, axis) => low <= before[axis] && before[axis] <= box.high[axis]);
  const middle = box && [shown.keySlice(), ...[1, 2].map((axis) => Math.round((box.low[axis] + box.high[axis]) / 2))];
  const cursor = isInside || (isSame && !box) ? before : (middle ?? shown.shape.map((n) => Math.floor(n / 2)));
  store.set({
    shown,
    expected: 0,
    sample: 0,
    reading: null,
    range: null,
    revision: store.values.revision + 1,
    cursor,
    cross: false,
    label: shown.foreground[0]?.index ?? 1,
    measure: defaultMeasure(shown),
    ...(isSame && !box ? {} : { focus: focusOf(shown) }),
    ...(isSame ? {} : { window: { ...shown.input.window } }),
  });
}

/** Measurement that is asked for first. @param {Case} shown */
export function defaultMeasure(shown) {
  const measures = shown.result?.measures ?? [];
  return (
    (
      measures.find(({ title }) => /longest diameter/i.test(title)) ??
      measures.find(({ title }) => /diameter/i.test(title)) ??
      measures[0]
    )?.key ?? null
  );
}

/** Part of a volume around a crop; null shows all of it. @param {Case} shown */
function focusOf(shown) {
  const first = shown.samples.find(Boolean);
  if (!shown.isVolume || !first || first.shape.every((n, i) => n > shown.shape[i] / 2)) return null;
  return { shape: first.shape, offset: first.offset };
}

/** @param {Case | null} shown @param {Triple} voxel */
function readOut(shown, [z, y, x]) {
  if (!shown?.image) return "";
  const { image } = shown;
  const [, rows, columns] = image.shape;
  const at = ((z * rows + y) * columns + x) * image.channels;
  const value = Array.from(image.data.slice(at, at + image.channels), number).join(" ");
  const place = shown.isVolume ? `x ${x}  y ${y}  z ${z}` : `x ${x}  y ${y}`;
  return `${place}   ${value}${shown.input.units ? ` ${shown.input.units}` : ""}`;
}

/** What the canvas shows, in words. @param {any} values */
function describe({ shown, view, mode, sample, reading, label, threshold }) {
  if (!shown?.samples.length) return [];
  const named = (/** @type {string} */ color, /** @type {string} */ name) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = color;
    return h("span", { class: "legend" }, swatch, name);
  };
  const kind = shown.classes.find((/** @type {any} */ c) => c.index === label);
  if (mode === "surface" && shown.isVolume)
    return [h("span", {}, `Probability of ${kind?.name ?? "the class"} above ${percent(threshold)}; drag to turn`)];
  if (view === "sample") {
    const of = shown.result?.samples[sample]?.hypothesis;
    const parts = [h("span", {}, `Sample ${sample + 1} of ${shown.samples.length}`)];
    return of == null ? parts : [...parts, named(readingColor(of), capital(shown.result.hypotheses[of].name))];
  }
  if (view === "readings" && shown.result) {
    /** @type {import("./case.js").Reading[]} */
    const all = shown.result.hypotheses;
    const legend = all.map(({ name, probability }, i) => named(readingColor(i), `${capital(name)} ${percent(probability)}`));
    if (reading != null) return [legend[reading]];
    const rest = legend.length - LEGEND;
    return rest > 1 ? [...legend.slice(0, LEGEND), h("span", {}, `and ${rest} more`)] : legend;
  }
  if (view === "probability" || view === "entropy") {
    const bar = h("span", { class: "heat-bar" });
    bar.style.background = HEAT_GRADIENT;
    const name = view === "entropy" ? "Entropy" : `Probability of ${kind?.name ?? "the class"}`;
    return [h("span", {}, name), h("span", { class: "legend" }, "0", bar, "1")];
  }
  return [
    h("span", {}, plural(shown.drawn.indices.length, "sample")),
    ...shown.foreground.map((/** @type {any} */ k) => named(classColor(k), capital(k.name))),
  ];
}

/** Readings, measurement, agreement, files. @param {any} store */
function createSide(store) {
  const [cards, measure, scores, files] = ["readings", "measurement", "scores", "files"].map((name) =>
    h("section", { class: `panel ${name}`, hidden: true }),
  );
  const [warnings, notes] = [h("div", { class: "notices" }), h("div", { class: "notices" })];
  const blank = h("p", { class: "blank muted" }, "Readings, measurements and files appear here.");
  const side = h(
    "aside",
    { class: "bench-side", "aria-label": "Results" },
    warnings,
    cards,
    measure,
    scores,
    files,
    notes,
    blank,
  );
  createCards(cards, store);
  createMeasure(measure, store);
  store.on(["shown", "revision"], () => {
    const result = store.values.shown?.result;
    blank.hidden = !!result;
    warnings.replaceChildren(
      ...(result?.warnings ?? []).map((/** @type {string} */ text) =>
        h("p", { class: "notice warning" }, capital(text.replace(/^WARNING: /, ""))),
      ),
    );
    notes.replaceChildren(
      ...(result?.notes ?? []).map((/** @type {string} */ text) => h("p", { class: "notice" }, capital(text))),
    );
    showScores(scores, result);
    showFiles(files, result);
  });
  return side;
}

const SCORES = /** @type {Record<string, [string, string]>} */ ({
  ged: ["GED", "Distance between the samples and the raters; 0 is best"],
  hm_iou: ["HM-IoU", "Overlap of matched samples and raters; 1 is best"],
});

/** @param {HTMLElement} root @param {any} result */
function showScores(root, result) {
  const known = Object.entries(SCORES).filter(([key]) => result?.scores?.[key] != null);
  root.hidden = !known.length;
  root.replaceChildren(
    h("h2", {}, "Agreement with the raters"),
    h(
      "dl",
      { class: "score-list" },
      ...known.map(([key, [name, meaning]]) =>
        h(
          "div",
          { title: meaning },
          h("dt", {}, name),
          h("dd", {}, Number(result.scores[key]).toFixed(3)),
          h("dd", { class: "muted" }, meaning),
        ),
      ),
    ),
  );
}

/** @param {HTMLElement} root @param {any} result */
function showFiles(root, result) {
  root.hidden = !result?.files?.length;
  root.replaceChildren(
    h("h2", {}, "Download"),
    h(
      "ul",
      { class: "files" },
      ...(result?.files ?? []).map((/** @type {any} */ file) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: url(file.url), download: file.name },
            h("span", {}, file.title),
            h("span", { class: "muted" }, bytes(file.bytes)),
          ),
        ),
      ),
    ),
  );
}
