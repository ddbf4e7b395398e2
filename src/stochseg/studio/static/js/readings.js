/** Cards of the readings, the film strip of samples, and their thumbnails.
 * @module
 */
import { capital, percent, plural } from "./analysis.js";
import { readingColor } from "./colors.js";
import { h } from "./dom.js";
import { paint, sampleOutlines } from "./paint.js";
import { fit, placeOf } from "./planes.js";

/** @typedef {import("./case.js").Case} Case */

/** Square around the marks, in the plane of the slices, at least a quarter of the image. @param {Case} shown */
export function closeUp(shown) {
  const [, rows, columns] = shown.shape;
  const box = shown.markedBox() ?? { low: [0, 0, 0], high: shown.shape.map((n) => n - 1) };
  const least = Math.min(rows, columns, Math.max(24, Math.min(rows, columns) / 4));
  const side = Math.max(least, 1.5 * (box.high[1] - box.low[1] + 1), 1.5 * (box.high[2] - box.low[2] + 1));
  const middle = [1, 2].map((axis) => (box.low[axis] + box.high[axis] + 1) / 2);
  return /** @type {[number, number, number, number]} */ ([middle[0] - side / 2, middle[1] - side / 2, side, side]);
}

/**
 * Draw one sample close up.
 * @param {HTMLCanvasElement} canvas
 * @param {Case} shown
 * @param {number} sample
 * @param {{low: number, high: number}} window
 * @param {ReturnType<closeUp>} box
 */
export function drawThumb(canvas, shown, sample, window, [top, left, rows, columns]) {
  const size = canvas.width;
  const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  ctx.clearRect(0, 0, size, size);
  const part = placeOf(
    { shape: [1, rows, columns], offset: [0, top, left], channels: 1, data: new Uint8Array() },
    shown.shape,
    shown.spacing,
    0,
  );
  const layers = { heat: null, outlines: sampleOutlines(shown, sample, { width: size / 48, alpha: 1, fill: 0.1 }) };
  const cursor = /** @type {[number, number, number]} */ ([shown.keySlice(), 0, 0]);
  paint(ctx, { shown, plane: 0, cursor, viewport: fit(part, size, size, 0), window, layers });
}

/** Draw the thumbnails below an element. @param {HTMLElement} root @param {any} values */
export function drawThumbs(root, { shown, window }) {
  if (!shown?.image || !shown.samples.length) return;
  const box = closeUp(shown);
  for (const canvas of root.querySelectorAll("canvas[data-sample]")) {
    const thumb = /** @type {HTMLCanvasElement} */ (canvas);
    drawThumb(thumb, shown, Number(thumb.dataset.sample), window, box);
  }
}

/** @param {number} sample @param {number} size */
function thumb(sample, size) {
  return h("canvas", {
    width: 2 * size,
    height: 2 * size,
    "data-sample": sample,
    class: "thumb",
    "aria-hidden": "true",
  });
}

/**
 * Film strip: one button per sample, in the colors of the readings.
 * @param {HTMLElement} root
 * @param {any} store
 */
export function createStrip(root, store) {
  const build = () => {
    const { shown, expected } = store.values;
    const count = Math.max(shown?.samples.length ?? 0, expected);
    root.hidden = !count;
    root.replaceChildren(...Array.from({ length: count }, (_, i) => frame(store, i)));
    mark();
    drawThumbs(root, store.values);
  };
  const mark = () => {
    const { shown, sample, view } = store.values;
    if (!shown) return;
    const chosen = shown.selected(store.values);
    [...root.children].forEach((button, i) => {
      button.setAttribute("aria-pressed", String(view === "sample" && i === sample));
      button.classList.toggle("dimmed", !!shown.samples[i] && !chosen[i]);
      if (view === "sample" && i === sample) reveal(root, /** @type {HTMLElement} */ (button));
    });
  };
  root.hidden = true;
  store.on(["shown", "revision", "expected"], build);
  store.on(["window"], () => drawThumbs(root, store.values));
  store.on(["sample", "view", "reading", "range", "measure"], mark);
}

/** Scroll the strip, and nothing else, to a button. @param {HTMLElement} root @param {HTMLElement} button */
function reveal(root, button) {
  const left = button.offsetLeft - root.offsetLeft;
  if (left < root.scrollLeft || left + button.offsetWidth > root.scrollLeft + root.clientWidth) {
    root.scrollLeft = left - root.clientWidth / 2;
  }
}

/** @param {any} store @param {number} index */
function frame(store, index) {
  const { shown } = store.values;
  if (!shown?.samples[index]) return h("span", { class: "frame waiting", "aria-hidden": "true" });
  const reading = shown.result?.samples[index]?.hypothesis;
  const name = reading == null ? `Sample ${index + 1}` : `Sample ${index + 1}, reading ${reading + 1}`;
  const element = h(
    "button",
    {
      class: "frame",
      type: "button",
      title: name,
      "aria-label": name,
      onclick: () => store.set({ view: "sample", sample: index }),
    },
    thumb(index, 56),
  );
  element.style.setProperty("--reading", readingColor(reading));
  return element;
}

/**
 * Cards of the readings; a card selects its samples.
 * @param {HTMLElement} root
 * @param {any} store
 */
export function createCards(root, store) {
  const build = () => {
    const { shown } = store.values;
    const readings = shown?.result?.hypotheses ?? [];
    const rater = shown?.result?.drawn_as;
    root.hidden = !readings.length;
    root.replaceChildren(
      h("h2", {}, readings.length === 1 ? "One reading" : `${readings.length} readings`),
      ...(rater ? [h("p", { class: "muted" }, `Drawn as ${rater} would draw`)] : []),
      h(
        "div",
        { class: "cards" },
        ...readings.map((/** @type {any} */ reading, /** @type {number} */ i) => card(store, reading, i)),
      ),
    );
    mark();
    drawThumbs(root, store.values);
  };
  const mark = () =>
    root
      .querySelectorAll(".card")
      .forEach((element, i) => element.setAttribute("aria-pressed", String(store.values.reading === i)));
  store.on(["shown", "revision"], build);
  store.on(["reading"], mark);
  store.on(["window"], () => drawThumbs(root, store.values));
}

/** @param {any} store @param {import("./case.js").Reading} reading @param {number} index */
function card(store, reading, index) {
  const others = store.values.shown.result.hypotheses.slice(1);
  const isFirst =
    index === 0 && others.every((/** @type {any} */ { probability }) => probability < reading.probability);
  const choose = () => {
    const isChosen = store.values.reading === index;
    store.set(isChosen ? { reading: null } : { reading: index, view: "readings", sample: reading.medoid });
  };
  const meter = h("span", { class: "meter", "aria-hidden": "true" }, h("span"));
  meter.firstChild.style.width = `${100 * reading.probability}%`;
  const element = h(
    "button",
    { class: "card", type: "button", onclick: choose },
    thumb(reading.medoid, 64),
    h(
      "span",
      { class: "card-text" },
      h("span", { class: "card-name" }, isFirst ? `${capital(reading.name)} · most likely` : capital(reading.name)),
      h("span", { class: "card-value" }, percent(reading.probability)),
      meter,
      h(
        "span",
        { class: "muted", title: "95% interval of the probability, from the number of samples" },
        [
          plural(reading.members.length, "sample"),
          reading.interval && reading.interval.map((p) => Math.round(100 * p)).join("–") + "%",
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    ),
  );
  element.style.setProperty("--reading", readingColor(index));
  return element;
}
