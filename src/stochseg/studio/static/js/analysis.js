/** Arithmetic on weighted samples: frequencies, histograms, the probability of a range.
 * @module
 */

/** @typedef {import("./decode.js").Grid} Grid */
/** @typedef {{low: number, high: number}} Range  either end may be infinite */

/**
 * Frequency of a class in each voxel, as 0 to 255.
 * @param {Grid[]} maps
 * @param {number[]} weights
 * @param {number} label
 * @returns {Grid}
 */
export function frequency(maps, weights, label) {
  const sums = new Float32Array(maps[0].data.length);
  maps.forEach(({ data }, i) => {
    for (let at = 0; at < sums.length; at++) if (data[at] === label) sums[at] += weights[i];
  });
  const total = sum(weights.slice(0, maps.length));
  return { ...maps[0], data: Uint8Array.from(sums, (value) => Math.round((255 * value) / total)) };
}

/**
 * Entropy of class probabilities in each voxel, as 0 to 255 for 0 to log(classes).
 * @param {Grid[]} probabilities  of all classes, 0 to 255
 * @returns {Grid}
 */
export function entropy(probabilities) {
  const top = Math.log(Math.max(2, probabilities.length));
  const term = Float64Array.from({ length: 256 }, (_, i) => (i ? (-i / 255) * Math.log(i / 255) : 0));
  const out = new Uint8Array(probabilities[0].data.length);
  for (let at = 0; at < out.length; at++) {
    let value = 0;
    for (const { data } of probabilities) value += term[data[at]];
    out[at] = Math.round((255 * Math.min(top, value)) / top);
  }
  return { ...probabilities[0], data: out };
}

/** @param {number[]} values */
export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** @param {number | null | undefined} value @param {Range} range */
export function inRange(value, range) {
  return value != null && value >= range.low && value <= range.high;
}

/**
 * Probability that a measurement is within a range; samples without a value are outside.
 * @param {(number | null)[]} values
 * @param {number[]} weights
 * @param {Range} range
 */
export function probabilityIn(values, weights, range) {
  return sum(weights.filter((_, i) => inRange(values[i], range))) / sum(weights);
}

/** Next round number, 1, 2 or 5 times a power of ten, that is not below. @param {number} value */
export function roundStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((step) => step * power >= value * (1 - 1e-9)) ?? 10);
}

/**
 * Bins of round width over all values.
 * @param {(number | null)[]} values
 * @param {number[]} weights
 * @param {number[]} [also]  values that the axis must show, too
 * @param {number} [count]  of bins, about
 */
export function histogram(values, weights, also = [], count = 14) {
  const present = [...values.filter((value) => value != null), ...also];
  const [low, high] = [Math.min(...present), Math.max(...present)];
  const width = roundStep(Math.max(high - low, Math.abs(high) * 0.02, 1e-6) / count);
  const start = Math.floor(low / width);
  const bins = Array.from({ length: Math.floor(high / width) - start + 1 }, (_, i) => ({
    low: (start + i) * width,
    high: (start + i + 1) * width,
    weight: 0,
    samples: /** @type {number[]} */ ([]),
  }));
  const total = sum(weights);
  values.forEach((value, i) => {
    if (value == null) return;
    const bin = bins[Math.min(bins.length - 1, Math.floor(value / width) - start)];
    bin.weight += weights[i] / total;
    bin.samples.push(i);
  });
  return { bins, width, low: bins[0].low, high: bins[bins.length - 1].high };
}

/** Round numbers from low to high, about `count`. @param {number} low @param {number} high @param {number} count */
export function ticks(low, high, count) {
  const step = roundStep((high - low) / count);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

/** Number with three significant digits. @param {number | null | undefined} value */
export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en-US");
  return Number(value.toPrecision(3)).toString();
}

/** @param {number} part */
export function percent(part) {
  const value = 100 * part;
  if (value > 0 && value < 1) return "<1%";
  if (value > 99 && value < 100) return ">99%";
  return `${Math.round(value)}%`;
}

/** @param {number | null} count  null: not known yet */
export function bytes(count) {
  if (count == null) return "";
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${Math.round(count / 1e3)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** Start with a capital, except words such as mIoU. @param {string} text */
export function capital(text) {
  return /^[a-z][^A-Z]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
