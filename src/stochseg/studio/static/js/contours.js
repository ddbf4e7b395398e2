/** Outlines by marching squares, closed where a region touches the border, as the pages of `stochseg report` draw them.
 * @module
 */

/** @typedef {import("./planes.js").Slice} Slice */
/** @typedef {[number, number][]} Line  closed; pixels, the center of the first pixel is 0, 0 */

// Sides of a cell that a line enters and leaves, by the corners above the level (top left 1, top right 2, bottom right 4,
// bottom left 8); the region is on the right. Sides: 0 top, 1 right, 2 bottom, 3 left. Saddles are kept apart.
const SEGMENTS = [
  [],
  [[0, 3]],
  [[1, 0]],
  [[1, 3]],
  [[2, 1]],
  [
    [0, 3],
    [2, 1],
  ],
  [[2, 0]],
  [[2, 3]],
  [[3, 2]],
  [[0, 2]],
  [
    [1, 0],
    [3, 2],
  ],
  [[1, 2]],
  [[3, 1]],
  [[0, 1]],
  [[3, 0]],
  [],
];

/**
 * Outlines of the region where a field is above a level.
 * @param {Slice} slice
 * @param {number} level
 * @param {(value: number) => number} [field]  from the value of a pixel
 * @returns {Line[]}
 */
export function outlines(slice, level, field = (value) => value) {
  const { columns, rows, data } = slice;
  const at = (/** @type {number} */ x, /** @type {number} */ y) =>
    x < 0 || y < 0 || x >= columns || y >= rows ? 0 : field(data[y * columns + x]);
  /** @type {Map<number, {to: number, point: [number, number]}>} */
  const links = new Map();
  const box = bounds(slice, level, field);
  for (let y = box.top - 1; y <= box.bottom; y++) {
    for (let x = box.left - 1; x <= box.right; x++) {
      const corners = [at(x, y), at(x + 1, y), at(x + 1, y + 1), at(x, y + 1)];
      const kind = corners.reduce((sum, value, i) => sum + (value > level ? 1 << i : 0), 0);
      for (const [enter, leave] of SEGMENTS[kind]) {
        links.set(edge(x, y, enter, columns), {
          to: edge(x, y, leave, columns),
          point: crossing(x, y, enter, corners, level),
        });
      }
    }
  }
  return chain(links);
}

/**
 * First and last row and column with a value above a level; regions are small, images are not.
 * @param {Slice} slice @param {number} level @param {(value: number) => number} field
 */
export function bounds(slice, level, field = (value) => value) {
  const { columns, rows, data } = slice;
  const box = { left: columns, right: -1, top: rows, bottom: -1 };
  for (let i = 0; i < columns * rows; i++) {
    if (!(field(data[i]) > level)) continue;
    const [x, y] = [i % columns, Math.floor(i / columns)];
    box.left = Math.min(box.left, x);
    box.right = Math.max(box.right, x);
    box.top = Math.min(box.top, y);
    box.bottom = y;
  }
  return box;
}

/** Number of the edge on one side of a cell; both cells at an edge give the same.
 * @param {number} x @param {number} y @param {number} side @param {number} columns */
function edge(x, y, side, columns) {
  const horizontal = side === 0 || side === 2;
  const column = x + 1 + (side === 1 ? 1 : 0);
  const row = y + 1 + (side === 2 ? 1 : 0);
  return 2 * (row * (columns + 3) + column) + (horizontal ? 0 : 1);
}

/** @param {number} x @param {number} y @param {number} side @param {number[]} corners @param {number} level
 * @returns {[number, number]} */
function crossing(x, y, side, corners, level) {
  const [from, to] = [corners[side], corners[(side + 1) % 4]];
  const part = (level - from) / (to - from);
  switch (side) {
    case 0:
      return [x + part, y];
    case 1:
      return [x + 1, y + part];
    case 2:
      return [x + 1 - part, y + 1];
    default:
      return [x, y + 1 - part];
  }
}

/** @param {Map<number, {to: number, point: [number, number]}>} links */
function chain(links) {
  /** @type {Line[]} */
  const lines = [];
  for (const first of links.keys()) {
    /** @type {Line} */
    const line = [];
    for (let at = first, link = links.get(at); link; link = links.get(at)) {
      line.push(link.point);
      links.delete(at);
      at = link.to;
    }
    if (line.length) lines.push(line);
  }
  return lines;
}

/**
 * Path of outlines; fill it with the rule "evenodd". Corners are rounded through the middles of the sides, which moves a
 * line by less than a quarter of a pixel and takes the stairs out of it.
 * @param {Line[]} lines
 */
export function toPath(lines) {
  const path = new Path2D();
  for (const line of lines) {
    const middle = (/** @type {number} */ i) => {
      const [[x0, y0], [x1, y1]] = [line[i % line.length], line[(i + 1) % line.length]];
      return /** @type {[number, number]} */ ([(x0 + x1) / 2, (y0 + y1) / 2]);
    };
    path.moveTo(...middle(line.length - 1));
    line.forEach((point, i) => path.quadraticCurveTo(...point, ...middle(i)));
    path.closePath();
  }
  return path;
}
