/** Pictures: a slice of the image, and layers of maps and outlines over it.
 * @module
 */
import { HEAT, RATER_COLOR, classColor, readingColor } from "./colors.js";
import { outlines, toPath } from "./contours.js";
import { cut, placeOf, planeAxes, pointOf } from "./planes.js";
import { roundStep } from "./analysis.js";

/** @typedef {import("./decode.js").Grid} Grid */
/** @typedef {import("./case.js").Case} Case */
/** @typedef {import("./planes.js").Viewport} Viewport */
/** @typedef {{low: number, high: number}} Range */
/** @typedef {{grid: Grid, label: number, color: string, width: number, alpha: number, fill?: number, dash?: number[],
 *   level?: number}} Outline  `level` of a map, else the outline of a label */
/** @typedef {{heat: Grid | null, outlines: Outline[]}} Layers */
/** @typedef {{view: string, sample: number, reading: number | null, label: number, threshold: number,
 *   range: Range | null, measure: string | null, raters: boolean}} Look */

/** @type {WeakMap<Grid, Map<string, any>>} */
const pictures = new WeakMap();
/** @type {WeakMap<Grid, Map<string, any>>} */
const paths = new WeakMap();
const MAX_PICTURES = 24; // per grid; of 512×512 pixels, 1 MB each
const MAX_PATHS = 400;

/**
 * @template T
 * @param {WeakMap<Grid, Map<string, any>>} caches
 * @param {Grid} grid
 * @param {string} key
 * @param {() => T} make
 * @returns {T}
 */
function cached(caches, grid, key, make) {
  const cache = caches.get(grid) ?? new Map();
  caches.set(grid, cache);
  if (!cache.has(key)) {
    if (cache.size >= (caches === pictures ? MAX_PICTURES : MAX_PATHS)) cache.delete(cache.keys().next().value);
    cache.set(key, make());
  }
  return cache.get(key);
}

/** What a view shows of a case. @param {Case} shown @param {Look} look @returns {Layers} */
export function layersOf(shown, look) {
  const layers = LAYERS[look.view] ?? (() => ({ heat: null, outlines: [] }));
  const { heat, outlines: lines } = shown.samples.length ? layers(shown, look) : { heat: null, outlines: [] };
  const raters = look.raters ? shown.raters.flatMap((grid) => raterOutlines(shown, grid)) : [];
  return { heat, outlines: [...lines, ...raters] };
}

/** @type {Record<string, (shown: Case, look: Look) => Layers>} */
const LAYERS = {
  sample: (shown, look) => ({
    heat: null,
    outlines: sampleOutlines(shown, look.sample, { width: 2, alpha: 1, fill: 0.26 }),
  }),
  contours: (shown, look) => ({ heat: null, outlines: manyOutlines(shown, look, false) }),
  readings: (shown, look) => ({ heat: null, outlines: manyOutlines(shown, look, true) }),
  probability: (shown, look) => {
    const grid = shown.probability(look.label);
    const level = 255 * look.threshold;
    return {
      heat: grid,
      outlines: grid ? [{ grid, label: 0, color: "#ffffff", width: 1.75, alpha: 0.95, level }] : [],
    };
  },
  entropy: (shown) => ({ heat: shown.entropy(), outlines: [] }),
};

/** @param {Case} shown @param {number} index @param {{width: number, alpha: number, fill?: number}} style */
export function sampleOutlines(shown, index, style) {
  const grid = shown.samples[index];
  if (!grid) return [];
  return shown.foreground.map((kind) => ({
    grid,
    label: kind.index,
    color: outlineColor(shown, index, kind),
    ...style,
  }));
}

/** With one class the color is free to tell the reading. @param {Case} shown @param {number} index @param {any} kind */
function outlineColor(shown, index, kind) {
  const reading = shown.result?.samples[index]?.hypothesis;
  return shown.foreground.length === 1 && reading != null ? readingColor(reading) : classColor(kind);
}

/** @param {Case} shown @param {Look} look @param {boolean} byReading */
function manyOutlines(shown, look, byReading) {
  const chosen = shown.selected(look);
  const { indices } = shown.drawn;
  const medoids = new Set((shown.result?.hypotheses ?? []).map(({ medoid }) => medoid));
  const faint = Math.min(0.9, Math.max(0.35, 6 / indices.length));
  // Those that stand out are drawn last.
  const order = [...indices].sort(
    (a, b) => Number(chosen[a]) - Number(chosen[b]) || Number(medoids.has(a)) - Number(medoids.has(b)),
  );
  return order.flatMap((i) => {
    const isMedoid = byReading && medoids.has(i);
    const style = { width: isMedoid ? 2.5 : 1.25, alpha: chosen[i] ? (isMedoid ? 1 : faint) : 0.12 };
    const color = byReading ? readingColor(shown.result?.samples[i]?.hypothesis) : null;
    return shown.foreground.map((kind) => ({
      grid: shown.samples[i],
      label: kind.index,
      color: color ?? classColor(kind),
      ...style,
    }));
  });
}

/** @param {Case} shown @param {Grid} grid */
function raterOutlines(shown, grid) {
  return shown.foreground.map(({ index }) => ({
    grid,
    label: index,
    color: RATER_COLOR,
    width: 1.5,
    alpha: 0.9,
    dash: [4, 3],
  }));
}

/**
 * @typedef {object} Scene
 * @property {Case} shown
 * @property {number} plane
 * @property {[number, number, number]} cursor
 * @property {Viewport} viewport
 * @property {Range} window
 * @property {Layers} layers
 */

/** Draw a scene. @param {CanvasRenderingContext2D} ctx @param {Scene} scene */
export function paint(ctx, scene) {
  const { shown, layers, plane, cursor } = scene;
  ctx.imageSmoothingEnabled = true;
  ctx.imageSmoothingQuality = "high";
  if (shown.image) {
    const image = shown.image;
    const { low, high } = scene.window;
    drawGrid(ctx, scene, image, `image ${low} ${high}`, (slice) => tones(slice, low, high));
  }
  if (layers.heat) drawGrid(ctx, scene, layers.heat, "heat", heat);
  for (const line of layers.outlines) drawOutline(ctx, scene, line, cursor[plane]);
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {Scene} scene
 * @param {Grid} grid
 * @param {string} name
 * @param {(slice: import("./planes.js").Slice) => ImageData} render
 */
function drawGrid(ctx, { shown, plane, cursor, viewport }, grid, name, render) {
  const index = cursor[plane];
  const canvas = cached(pictures, grid, `${name} ${plane} ${index}`, () => {
    const slice = cut(grid, plane, index);
    if (!slice) return null;
    const made = new OffscreenCanvas(slice.columns, slice.rows);
    /** @type {OffscreenCanvasRenderingContext2D} */ (made.getContext("2d")).putImageData(render(slice), 0, 0);
    return made;
  });
  if (!canvas) return;
  const place = placeOf(grid, shown.shape, shown.spacing, plane);
  const { scale, x, y } = viewport;
  ctx.drawImage(canvas, x + place.x * scale, y + place.y * scale, place.width * scale, place.height * scale);
}

/** Gray or color values from black at `low` to white at `high`.
 * @param {import("./planes.js").Slice} slice @param {number} low @param {number} high */
function tones({ columns, rows, channels, data }, low, high) {
  const out = new ImageData(columns, rows);
  const gain = 255 / Math.max(1e-6, high - low);
  for (let i = 0; i < columns * rows; i++) {
    for (let c = 0; c < 3; c++) out.data[4 * i + c] = (data[channels * i + (channels === 3 ? c : 0)] - low) * gain;
    out.data[4 * i + 3] = 255;
  }
  return out;
}

/** @param {import("./planes.js").Slice} slice */
function heat({ columns, rows, data }) {
  const out = new ImageData(columns, rows);
  for (let i = 0; i < columns * rows; i++) for (let c = 0; c < 4; c++) out.data[4 * i + c] = HEAT[4 * data[i] + c];
  return out;
}

/** @param {CanvasRenderingContext2D} ctx @param {Scene} scene @param {Outline} line @param {number} index */
function drawOutline(ctx, { shown, plane, viewport }, line, index) {
  const { grid, label, level } = line;
  const path = cached(paths, grid, `line ${plane} ${index} ${level ?? `label ${label}`}`, () => {
    const slice = cut(grid, plane, index);
    if (!slice) return null;
    return toPath(level == null ? outlines(slice, 0.5, (value) => (value === label ? 1 : 0)) : outlines(slice, level));
  });
  if (!path) return;
  const place = placeOf(grid, shown.shape, shown.spacing, plane);
  const { column, row } = planeAxes(plane);
  const [width, height] = [shown.spacing[column] * viewport.scale, shown.spacing[row] * viewport.scale]; // of a voxel
  const [x, y] = [viewport.x + place.x * viewport.scale, viewport.y + place.y * viewport.scale];
  // Transformed before it is stroked, so that lines are equally thick where voxels are not square.
  const screen = new Path2D();
  screen.addPath(path, new DOMMatrix([width, 0, 0, height, x + width / 2, y + height / 2]));
  ctx.save();
  ctx.globalAlpha = line.alpha;
  ctx.strokeStyle = line.color;
  ctx.fillStyle = line.color;
  ctx.lineWidth = line.width;
  ctx.lineJoin = "round";
  ctx.setLineDash(line.dash ?? []);
  ctx.stroke(screen);
  if (line.fill) {
    ctx.globalAlpha = line.fill;
    ctx.fill(screen, "evenodd");
  }
  ctx.restore();
}

/** Lines through the cursor. @param {CanvasRenderingContext2D} ctx @param {Scene} scene @param {number} width @param {number} height */
export function paintCross(ctx, { shown, plane, cursor, viewport }, width, height) {
  const point = pointOf(cursor, shown.shape, shown.spacing, plane);
  const [x, y] = [viewport.x + point.x * viewport.scale, viewport.y + point.y * viewport.scale];
  const gap = 10;
  ctx.save();
  ctx.strokeStyle = "rgba(255, 255, 255, .45)";
  ctx.beginPath();
  for (const [x0, y0, x1, y1] of [
    [0, y, x - gap, y],
    [x + gap, y, width, y],
    [x, 0, x, y - gap],
    [x, y + gap, x, height],
  ]) {
    ctx.moveTo(x0, y0);
    ctx.lineTo(x1, y1);
  }
  ctx.stroke();
  ctx.restore();
}

/** Bar of a round length in the lower left. @param {CanvasRenderingContext2D} ctx @param {Scene} scene @param {number} height */
export function paintScale(ctx, { shown, viewport }, height) {
  const length = roundStep(70 / viewport.scale);
  const [x, y, width] = [16, height - 18, length * viewport.scale];
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = "#ffffff";
  ctx.shadowColor = "#000000";
  ctx.shadowBlur = 4;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.moveTo(x, y - 4);
  ctx.lineTo(x, y);
  ctx.lineTo(x + width, y);
  ctx.lineTo(x + width, y - 4);
  ctx.stroke();
  ctx.font = "500 11px system-ui, sans-serif";
  ctx.fillText(`${Number(length.toPrecision(3))} ${shown.hasMillimeters ? "mm" : "px"}`, x, y - 9);
  ctx.restore();
}
