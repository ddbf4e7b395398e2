/** Planes through a volume, and the mapping between a plane and the screen.
 *
 * Plane 0, 1, 2 is perpendicular to d, h, w. The last slice is on top of planes 1 and 2, which is the head in axial
 * volumes. All positions are voxels; the center of the first voxel is 0.
 * @module
 */

/** @typedef {import("./decode.js").Grid} Grid */
/** @typedef {[number, number, number]} Triple  d, h, w */
/** @typedef {{scale: number, x: number, y: number}} Viewport  screen pixels per unit, screen position of the origin */
/** @typedef {{columns: number, rows: number, channels: number, data: ArrayLike<number>}} Slice */

const AXES = /** @type {const} */ ([
  [2, 1],
  [2, 0],
  [1, 0],
]);
export const PLANE_NAMES = ["Axial", "Coronal", "Sagittal"];

/** Axes of the columns and rows of a plane, and whether the rows run upwards. @param {number} plane */
export function planeAxes(plane) {
  const [column, row] = AXES[plane];
  return { column, row, flip: plane > 0 };
}

/**
 * Cut one plane out of a grid; null outside of it.
 * @param {Grid} grid
 * @param {number} plane
 * @param {number} index  of the plane in the input, that is, with the offset
 * @returns {Slice | null}
 */
export function cut(grid, plane, index) {
  const at = index - grid.offset[plane];
  if (at < 0 || at >= grid.shape[plane]) return null;
  const { channels, data } = grid;
  const [, h, w] = grid.shape;
  const { column, row, flip } = planeAxes(plane);
  const [columns, rows] = [grid.shape[column], grid.shape[row]];
  const strides = [h * w * channels, w * channels, channels];
  const start = at * strides[plane];
  if (plane === 0) return { columns, rows, channels, data: data.subarray(start, start + strides[0]) };
  const out = new /** @type {any} */ (data.constructor)(columns * rows * channels);
  for (let y = 0, to = 0; y < rows; y++) {
    const from = start + (flip ? rows - 1 - y : y) * strides[row];
    for (let x = 0; x < columns; x++) out[to++] = data[from + x * strides[column]];
  }
  return { columns, rows, channels, data: out };
}

/**
 * Place of a cut of `grid` within the same plane of the whole input, in units (millimeters, or pixels).
 * @param {Grid} grid
 * @param {Triple} shape  of the input
 * @param {Triple} spacing
 * @param {number} plane
 */
export function placeOf(grid, shape, spacing, plane) {
  const { column, row, flip } = planeAxes(plane);
  const top = flip ? shape[row] - grid.offset[row] - grid.shape[row] : grid.offset[row];
  return {
    x: grid.offset[column] * spacing[column],
    y: top * spacing[row],
    width: grid.shape[column] * spacing[column],
    height: grid.shape[row] * spacing[row],
  };
}

/**
 * Voxel under a point of a plane given in units; not rounded, not limited to the volume.
 * @param {{x: number, y: number}} point
 * @param {Triple} cursor  gives the position along the normal
 * @param {Triple} shape
 * @param {Triple} spacing
 * @param {number} plane
 * @returns {Triple}
 */
export function voxelAt(point, cursor, shape, spacing, plane) {
  const { column, row, flip } = planeAxes(plane);
  const voxel = /** @type {Triple} */ ([...cursor]);
  const y = point.y / spacing[row] - 0.5;
  voxel[column] = point.x / spacing[column] - 0.5;
  voxel[row] = flip ? shape[row] - 1 - y : y;
  return voxel;
}

/** Position of a voxel in a plane, in units: the inverse of `voxelAt`.
 * @param {Triple} voxel @param {Triple} shape @param {Triple} spacing @param {number} plane */
export function pointOf(voxel, shape, spacing, plane) {
  const { column, row, flip } = planeAxes(plane);
  const y = flip ? shape[row] - 1 - voxel[row] : voxel[row];
  return { x: (voxel[column] + 0.5) * spacing[column], y: (y + 0.5) * spacing[row] };
}

/**
 * Viewport that shows a box in the middle of a canvas.
 * @param {{x: number, y: number, width: number, height: number}} box  in units
 * @param {number} width  of the canvas
 * @param {number} height
 * @param {number} [margin]  of the canvas, as a fraction of it
 * @returns {Viewport}
 */
export function fit(box, width, height, margin = 0.03) {
  const scale = (1 - 2 * margin) * Math.min(width / box.width, height / box.height);
  return {
    scale,
    x: width / 2 - (box.x + box.width / 2) * scale,
    y: height / 2 - (box.y + box.height / 2) * scale,
  };
}

/** Zoom about a point of the screen. @param {Viewport} view @param {number} factor @param {number} x @param {number} y */
export function zoomAbout(view, factor, x, y) {
  return { scale: view.scale * factor, x: x - (x - view.x) * factor, y: y - (y - view.y) * factor };
}

/** Point of a plane, in units, under a point of the screen. @param {Viewport} view @param {number} x @param {number} y */
export function unproject(view, x, y) {
  return { x: (x - view.x) / view.scale, y: (y - view.y) / view.scale };
}

/** Voxel inside the volume that is nearest. @param {Triple} voxel @param {Triple} shape @returns {Triple} */
export function clampVoxel(voxel, shape) {
  return /** @type {Triple} */ (voxel.map((value, i) => Math.min(shape[i] - 1, Math.max(0, Math.round(value)))));
}
