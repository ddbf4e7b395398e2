/** Decoders of what the server sends: 8-bit PNG and NIfTI, both exact to the bit.
 *
 * PNG is not read back from a canvas, because browsers that resist fingerprinting add noise to those pixels, which would
 * turn labels into other labels.
 * @module
 */

/**
 * An image or label map on a grid; an image is a volume of one slice.
 * @typedef {object} Grid
 * @property {[number, number, number]} shape  d, h, w
 * @property {number} channels  1, or 3 interleaved
 * @property {Uint8Array | Int16Array | Uint16Array | Int32Array | Float32Array | Float64Array | Int8Array} data
 * @property {[number, number, number]} offset  d, h, w of the first voxel in the input
 */

/**
 * @param {BlobPart} bytes
 * @param {CompressionFormat} format
 */
async function inflate(bytes, format) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Undo the row filters of PNG.
 * @param {Uint8Array} raw  rows, each after its filter byte
 * @param {number} height
 * @param {number} stride  bytes per row
 * @param {number} step  bytes per pixel
 */
export function unfilter(raw, height, stride, step) {
  const out = new Uint8Array(height * stride);
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x++) {
      const at = y * stride + x;
      const left = x >= step ? out[at - step] : 0;
      const up = y > 0 ? out[at - stride] : 0;
      const corner = x >= step && y > 0 ? out[at - stride - step] : 0;
      out[at] = raw[y * (stride + 1) + 1 + x] + predict(filter, left, up, corner);
    }
  }
  return out;
}

/** @param {number} filter @param {number} left @param {number} up @param {number} corner */
function predict(filter, left, up, corner) {
  switch (filter) {
    case 1:
      return left;
    case 2:
      return up;
    case 3:
      return (left + up) >> 1;
    case 4:
      return paeth(left, up, corner);
    default:
      return 0;
  }
}

/** @param {number} a @param {number} b @param {number} c */
function paeth(a, b, c) {
  const [da, db, dc] = [Math.abs(b - c), Math.abs(a - c), Math.abs(a + b - 2 * c)];
  if (da <= db && da <= dc) return a;
  return db <= dc ? b : c;
}

const PNG_CHANNELS = /** @type {Record<number, number>} */ ({ 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 });

/**
 * Decode a PNG of 8 bits per channel: gray, RGB, with or without alpha (dropped), or palette (its indices).
 * @param {ArrayBuffer} buffer
 * @returns {Promise<Grid>}
 */
export async function decodePng(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 33 || view.getUint32(0) !== 0x89504e47) throw new Error("not a PNG file");
  const [width, height] = [view.getUint32(16), view.getUint32(20)];
  const [depth, color, interlace] = [view.getUint8(24), view.getUint8(25), view.getUint8(28)];
  if (depth !== 8 || interlace !== 0) throw new Error(`PNG of ${depth} bits, interlace ${interlace}: expected 8, 0`);
  const parts = [];
  for (let at = 8; at < buffer.byteLength;) {
    const length = view.getUint32(at);
    if (view.getUint32(at + 4) === 0x49444154) parts.push(new Uint8Array(buffer, at + 8, length));
    at += length + 12;
  }
  const stored = PNG_CHANNELS[color];
  const pixels = unfilter(await inflate(new Blob(parts), "deflate"), height, width * stored, stored);
  const channels = stored >= 3 ? 3 : 1;
  return { shape: [1, height, width], channels, data: keepChannels(pixels, stored, channels), offset: [0, 0, 0] };
}

/** @param {Uint8Array} pixels @param {number} stored @param {number} kept */
function keepChannels(pixels, stored, kept) {
  if (stored === kept) return pixels;
  const out = new Uint8Array((pixels.length / stored) * kept);
  for (let i = 0; i < out.length; i++) out[i] = pixels[Math.floor(i / kept) * stored + (i % kept)];
  return out;
}

const NIFTI_TYPES = /** @type {Record<number, any>} */ ({
  2: Uint8Array,
  4: Int16Array,
  8: Int32Array,
  16: Float32Array,
  64: Float64Array,
  256: Int8Array,
  512: Uint16Array,
});

/**
 * Decode a NIfTI-1 file, gzip or not: one grid per volume. Axes i, j, k of the file are w, h, d.
 * @param {ArrayBuffer} buffer
 * @returns {Promise<Grid[]>}
 */
export async function decodeNifti(buffer) {
  const first = new Uint8Array(buffer, 0, 2);
  if (first[0] === 0x1f && first[1] === 0x8b) buffer = (await inflate(buffer, "gzip")).buffer;
  const view = new DataView(buffer);
  if (view.getInt32(0, true) !== 348) throw new Error("not a little-endian NIfTI-1 file");
  const dim = Array.from({ length: 8 }, (_, i) => view.getInt16(40 + 2 * i, true));
  const [w, h, d, count] = [1, 2, 3, 4].map((i) => (i <= dim[0] ? Math.max(1, dim[i]) : 1));
  const Type = NIFTI_TYPES[view.getInt16(70, true)];
  if (!Type) throw new Error(`NIfTI of data type ${view.getInt16(70, true)} is not supported`);
  const start = view.getFloat32(108, true);
  const size = w * h * d;
  const all = new Type(buffer.slice(start, start + size * count * Type.BYTES_PER_ELEMENT));
  const scaled = rescale(all, view.getFloat32(112, true), view.getFloat32(116, true));
  return Array.from({ length: count }, (_, i) => ({
    shape: [d, h, w],
    channels: 1,
    data: scaled.subarray(i * size, (i + 1) * size),
    offset: [0, 0, 0],
  }));
}

/** @param {any} values @param {number} slope @param {number} intercept */
function rescale(values, slope, intercept) {
  if (!slope || Number.isNaN(slope) || (slope === 1 && intercept === 0)) return values;
  return Float32Array.from(values, (value) => value * slope + intercept);
}

/**
 * Decode a PNG or NIfTI file into one grid per volume.
 * @param {ArrayBuffer} buffer
 * @returns {Promise<Grid[]>}
 */
export async function decode(buffer) {
  const first = new Uint8Array(buffer, 0, 1)[0];
  return first === 0x89 ? [await decodePng(buffer)] : decodeNifti(buffer);
}
