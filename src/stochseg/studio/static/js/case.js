/** One image with its samples, held in memory: after it is loaded no view waits for the server.
 * @module
 */
import { getBytes, getJson } from "./api.js";
import { entropy, frequency, inRange } from "./analysis.js";
import { decode } from "./decode.js";

/** @typedef {import("./decode.js").Grid} Grid */
/** @typedef {import("./planes.js").Triple} Triple */
/** @typedef {{low: number, high: number}} Range */
/** @typedef {{index: number, name: string, color?: string}} Kind */
/** @typedef {{weight: number, hypothesis: number | null, measures: Record<string, number | null>}} SampleFacts */
/** @typedef {{name: string, probability: number, interval?: [number, number], medoid: number, members: number[]}} Reading */
/** @typedef {{key: string, title: string, unit: string, class: number | string | null, interval: [number, number] | null,
 *   level: number, median: number | null, statement: string, calibrated?: [number, number] | null}} Measure */
/** @typedef {{spatial_dims: number, shape: number[], offset: number[], classes: Kind[], samples: SampleFacts[],
 *   hypotheses: Reading[], measures: Measure[], scores: Record<string, any> | null,
 *   raters: {names: string[], measures: Record<string, (number | null)[]>} | null, warnings: string[], notes: string[],
 *   calibration?: string | null, drawn_as?: string | null, seconds: number, evaluations: number | null, model: string,
 *   files: {name: string, title: string, bytes: number, url: string}[]}} Result */
/** @typedef {{id: string, name: string, spatial_dims: number, shape: number[], spacing: number[] | null, window: Range,
 *   range: Range, units: string | null, rater_names: string[], image_url: string}} Input */

/** Pad the axes of an image to those of a volume. @param {number[]} values @param {number} first @returns {Triple} */
function three(values, first) {
  return /** @type {Triple} */ (values.length === 3 ? [...values] : [first, ...values.slice(-2)]);
}

export class Case {
  /** @param {Input} input @param {Kind[]} classes */
  constructor(input, classes) {
    this.input = input;
    this.shape = three(input.shape, 1);
    this.spacing = three(input.spacing ?? input.shape.map(() => 1), 1);
    this.hasMillimeters = input.spacing != null;
    this.isVolume = input.spatial_dims === 3;
    this.classes = classes;
    /** @type {Grid | null} */
    this.image = null;
    /** @type {Grid[]} */
    this.raters = [];
    /** @type {Grid[]} */
    this.samples = [];
    /** @type {number[]} */
    this.weights = [];
    /** @type {Result | null} */
    this.result = null;
    /** @type {Map<number, Grid>} */
    this.probabilities = new Map();
    /** @type {Grid | null} */
    this.entropyMap = null;
  }

  /** Classes other than the background. */
  get foreground() {
    return this.classes.filter((kind) => kind.index > 0);
  }

  /** @param {AbortSignal} [signal] */
  async loadImage(signal) {
    [this.image] = await decode(await getBytes(this.input.image_url, signal));
    return this;
  }

  /** @param {AbortSignal} [signal] */
  async loadRaters(signal) {
    const names = this.input.rater_names ?? [];
    const base = this.input.image_url.replace(/image$/, "raters");
    const grids = await Promise.all(names.map((_, k) => getBytes(`${base}/${k}`, signal).then(decode)));
    this.raters = grids.map(([grid]) => grid);
  }

  /** Empty copy for another set of samples of the same image. @param {Kind[]} classes */
  renewed(classes) {
    const next = new Case(this.input, classes);
    next.image = this.image;
    next.raters = this.raters;
    return next;
  }

  /**
   * Add a sample as it arrives; maps follow from the samples until the server's own are there.
   * @param {Grid} grid
   * @param {number} index
   * @param {number} weight
   */
  add(grid, index, weight) {
    this.samples[index] = grid;
    this.weights[index] = weight;
    this.probabilities.clear();
    this.entropyMap = null;
  }

  /** Samples without gaps, in their order. */
  get drawn() {
    const indices = Object.keys(this.samples).map(Number);
    return { indices, maps: indices.map((i) => this.samples[i]), weights: indices.map((i) => this.weights[i] ?? 1) };
  }

  /** @param {number} label @returns {Grid | null} */
  probability(label) {
    const known = this.probabilities.get(label);
    if (known) return known;
    const { maps, weights } = this.drawn;
    if (!maps.length) return null;
    const map = frequency(maps, weights, label);
    this.probabilities.set(label, map);
    return map;
  }

  /** @returns {Grid | null} */
  entropy() {
    if (!this.samples.length) return null;
    this.entropyMap ??= entropy(this.classes.map(({ index }) => /** @type {Grid} */ (this.probability(index))));
    return this.entropyMap;
  }

  /** @param {Result} result */
  adopt(result) {
    this.result = result;
    this.classes = result.classes;
    this.weights = result.samples.map(({ weight }) => weight);
  }

  /** Place of the crop of a result in the input. @param {Grid} grid @param {number[] | undefined} offset */
  static place(grid, offset) {
    grid.offset = offset ? three(offset, 0) : [0, 0, 0];
    return grid;
  }

  /**
   * Fetch the result and the maps of a finished job; samples that streamed in are kept if they are of the same part.
   * @param {string} base
   * @param {AbortSignal} [signal]
   */
  async loadResult(base, signal) {
    /** @type {Result} */
    const result = await getJson(`${base}/result`, signal);
    const grab = async (/** @type {string} */ path) =>
      (await decode(await getBytes(`${base}/${path}`, signal))).map((grid) => Case.place(grid, result.offset));
    const part = String([three(result.shape, 1), three(result.offset, 0)]);
    const isKept = (/** @type {Grid | undefined} */ grid) => grid && String([grid.shape, grid.offset]) === part;
    const missing = result.samples.map((_, i) => i).filter((i) => !isKept(this.samples[i]));
    if (this.isVolume && missing.length > 1) this.samples = await grab("samples");
    else await Promise.all(missing.map(async (i) => ([this.samples[i]] = await grab(`samples/${i}`))));
    const [entropyMap, ...maps] = await Promise.all([
      grab("entropy"),
      ...result.classes.map(({ index }) => grab(`probability/${index}`)),
    ]);
    this.samples.length = result.samples.length;
    this.probabilities = new Map(result.classes.map(({ index }, i) => [index, maps[i][0]]));
    this.entropyMap = entropyMap[0];
    this.adopt(result);
    return this;
  }

  /**
   * Which samples the chosen reading and range of a measurement select; all if neither is chosen.
   * @param {{reading: number | null, measure: string | null, range: Range | null}} choice
   */
  selected({ reading, measure, range }) {
    const facts = this.result?.samples;
    return Array.from(this.samples, (_, i) => {
      if (!facts?.[i]) return true;
      if (reading != null && facts[i].hypothesis !== reading) return false;
      return !range || !measure || inRange(facts[i].measures[measure], range);
    });
  }

  /** Slice, perpendicular to d, in which the samples mark most; the middle if they mark nothing. */
  keySlice() {
    const counts = new Float64Array(this.shape[0]);
    for (const grid of this.drawn.maps)
      extentOf(grid).counts.forEach((count, z) => {
        counts[z + grid.offset[0]] += count;
      });
    const most = counts.indexOf(Math.max(...counts));
    return counts[most] > 0 ? most : Math.floor(this.shape[0] / 2);
  }

  /** First and last voxel per axis of all that any sample marks; null if nothing is marked. */
  markedBox() {
    const boxes = this.drawn.maps
      .map((grid) => ({ ...extentOf(grid), offset: grid.offset }))
      .filter(({ high }) => high[0] >= 0);
    if (!boxes.length) return null;
    return {
      low: [0, 1, 2].map((axis) => Math.min(...boxes.map(({ low, offset }) => low[axis] + offset[axis]))),
      high: [0, 1, 2].map((axis) => Math.max(...boxes.map(({ high, offset }) => high[axis] + offset[axis]))),
    };
  }
}

/** @type {WeakMap<Grid, {low: number[], high: number[], counts: number[]}>} */
const extents = new WeakMap();

/** Marked voxels of a map: first and last per axis, and how many per slice; computed once. @param {Grid} grid */
function extentOf(grid) {
  const known = extents.get(grid);
  if (known) return known;
  const {
    shape: [d, rows, columns],
    data,
  } = grid;
  const found = { low: [Infinity, Infinity, Infinity], high: [-1, -1, -1], counts: new Array(d).fill(0) };
  for (let z = 0, i = 0; z < d; z++) {
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++, i++) {
        if (!data[i]) continue;
        found.counts[z]++;
        [z, y, x].forEach((at, axis) => {
          if (at < found.low[axis]) found.low[axis] = at;
          if (at > found.high[axis]) found.high[axis] = at;
        });
      }
    }
  }
  extents.set(grid, found);
  return found;
}

/** Open a case of a run or a finished job. @param {string} base @param {Input} input @param {AbortSignal} [signal] */
export async function openCase(base, input, signal) {
  const opened = new Case(input, []);
  await Promise.all([opened.loadImage(signal), opened.loadRaters(signal), opened.loadResult(base, signal)]);
  return opened;
}
