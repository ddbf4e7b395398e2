/** The canvas before anything is opened: what this is, and examples to start with.
 * @module
 */
import { readingColor } from "./colors.js";
import { h } from "./dom.js";

const SIZE = { width: 280, height: 190 };
const POINTS = 72; // of an outline
/** Two readings of one lesion: samples, center, radius, and how much samples differ. */
const SKETCH = [
  { reading: 1, count: 7, x: 140, y: 99, radius: 64, wobble: 0.09 },
  { reading: 0, count: 9, x: 134, y: 93, radius: 40, wobble: 0.06 },
];

/** @param {any[]} examples @param {(example: any) => void} pick */
export function createWelcome(examples, pick) {
  return h(
    "div",
    { class: "welcome" },
    sketch(),
    h("h1", {}, "See every plausible segmentation"),
    h("p", {}, "Drop an image or a scan anywhere on this page, or start with an example."),
    h(
      "div",
      { class: "welcome-examples" },
      ...examples.map((example) =>
        h("button", { type: "button", class: "chip", onclick: () => pick(example) }, example.title),
      ),
    ),
  );
}

/** Outlines in the colors of two readings, drawn one after the other. */
function sketch() {
  const random = generator(7);
  const outlines = SKETCH.flatMap(({ count, ...shape }) => Array.from({ length: count }, (_, i) => outline(shape, i, random)));
  outlines.forEach((line, i) => {
    line.style.animationDelay = `${80 * i}ms`;
  });
  const glow = [60, 48, 36, 26].map((r) => h("circle", { cx: 137, cy: 96, r, class: "sketch-glow" }));
  return h("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, class: "sketch", "aria-hidden": "true" }, ...glow, ...outlines);
}

/** @param {{reading: number, x: number, y: number, radius: number, wobble: number}} shape @param {number} index @param {() => number} random */
function outline({ reading, x, y, radius, wobble }, index, random) {
  const waves = [1, 2, 3, 4, 5].map((k) => ({ k, phase: 2 * Math.PI * random(), size: (wobble * (random() + 0.3)) / Math.sqrt(k) }));
  const scale = radius * (1 + wobble * (random() - 0.5));
  const points = Array.from({ length: POINTS }, (_, i) => {
    const angle = (2 * Math.PI * i) / POINTS;
    const r = waves.reduce((sum, { k, phase, size }) => sum + scale * size * Math.cos(k * angle + phase), scale);
    return `${(x + 1.12 * r * Math.cos(angle)).toFixed(1)} ${(y + r * Math.sin(angle)).toFixed(1)}`;
  });
  return h("path", {
    d: `M${points.join("L")}Z`,
    pathLength: 1,
    stroke: readingColor(reading),
    class: index ? "sketch-line" : "sketch-line typical",
  });
}

/** The same numbers from 0 to 1 at every visit. @param {number} seed */
function generator(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
