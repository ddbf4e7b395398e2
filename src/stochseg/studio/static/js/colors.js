/** Colors of readings, classes, raters and maps; distinguishable with any kind of color vision.
 * @module
 */

/** On black, in the order of probability: sky blue, orange, green, yellow, purple, vermilion. */
export const READING_COLORS = ["#56b4e9", "#f0a030", "#2cc295", "#f0e442", "#d78bc0", "#e8703a"];
export const RATER_COLOR = "#ffffff";

/** @param {number | null | undefined} index */
export function readingColor(index) {
  return index == null ? "#9fb0bf" : READING_COLORS[index % READING_COLORS.length];
}

/** @param {string} hex @returns {[number, number, number]} */
export function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Stops of the map from transparent to bright, of rising lightness: dark blue, teal, yellow. */
const STOPS = ["#173a6b", "#1f7a8c", "#4fb286", "#c8d95a", "#fff3a6"].map(rgb);

/** Color and opacity for 0 to 255, four bytes each. */
export const HEAT = (() => {
  const out = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (STOPS.length - 1);
    const low = Math.min(STOPS.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++) out[4 * i + c] = STOPS[low][c] + (place - low) * (STOPS[low + 1][c] - STOPS[low][c]);
    out[4 * i + 3] = i < 3 ? 0 : 90 + (i / 255) * 140;
  }
  return out;
})();

/** The same map as a CSS gradient without transparency. */
export const HEAT_GRADIENT = `linear-gradient(90deg, ${STOPS.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;

/**
 * Color of a class; the palette of a model may be dark or missing.
 * @param {{index: number, color?: string}} kind
 */
export function classColor(kind) {
  return kind.color ?? READING_COLORS[(kind.index - 1 + READING_COLORS.length) % READING_COLORS.length];
}
