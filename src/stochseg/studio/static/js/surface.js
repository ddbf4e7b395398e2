/** A class of a volume as a surface, drawn by NiiVue, which is loaded only for it.
 * @module
 */
import { h, guarded } from "./dom.js";

/** @typedef {import("./decode.js").Grid} Grid */

/** Transparent below the threshold, then the color of the first reading. */
const COLORS = { R: [30, 86, 170], G: [80, 180, 225], B: [120, 233, 255], A: [0, 160, 255], I: [0, 64, 255] };

const MARGIN = 3; // voxels around the surface

/** @type {Promise<any> | undefined} */
let library;

function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", {
      src: "/static/vendor/niivue.umd.js",
      onload: () => resolve(/** @type {any} */ (window).niivue),
      onerror: () => reject(new Error("The viewer of surfaces could not be loaded.")),
    });
    document.head.append(script);
  });
  return library;
}

/**
 * NIfTI file of a map, for NiiVue; axes i, j, k are w, h, d.
 * @param {Grid} grid
 * @param {[number, number, number]} spacing  d, h, w
 */
export function encodeNifti({ shape: [d, rows, w], data }, spacing) {
  const buffer = new ArrayBuffer(352 + data.length);
  const view = new DataView(buffer);
  view.setInt32(0, 348, true);
  [3, w, rows, d, 1, 1, 1, 1].forEach((n, i) => view.setInt16(40 + 2 * i, n, true));
  view.setInt16(70, 2, true);
  view.setInt16(72, 8, true);
  [1, spacing[2], spacing[1], spacing[0]].forEach((mm, i) => view.setFloat32(76 + 4 * i, mm, true));
  view.setFloat32(108, 352, true);
  view.setFloat32(112, 1, true);
  view.setInt16(254, 1, true);
  // Rows run downwards on the screen, that is, to the back of the patient.
  const affine = [
    [-spacing[2], 0, 0, 0],
    [0, -spacing[1], 0, 0],
    [0, 0, spacing[0], 0],
  ];
  affine.flat().forEach((value, i) => view.setFloat32(280 + 4 * i, value, true));
  view.setUint32(344, 0x6e2b3100);
  new Uint8Array(buffer, 352).set(/** @type {Uint8Array} */ (data));
  return buffer;
}

/** The part of a map that is not empty, with a margin: it fills the view. @param {Grid} grid @returns {Grid} */
export function trim(grid) {
  const { shape, data } = grid;
  const [low, high] = [[...shape], [-1, -1, -1]];
  data.forEach((value, i) => {
    if (!value) return;
    const at = [Math.floor(i / (shape[1] * shape[2])), Math.floor(i / shape[2]) % shape[1], i % shape[2]];
    at.forEach((place, axis) => {
      low[axis] = Math.min(low[axis], place);
      high[axis] = Math.max(high[axis], place);
    });
  });
  if (high[0] < 0) return grid;
  const first = low.map((place) => Math.max(0, place - MARGIN));
  const [d, rows, columns] = high.map((place, axis) => Math.min(shape[axis], place + MARGIN + 1) - first[axis]);
  const part = new Uint8Array(d * rows * columns);
  for (let z = 0; z < d; z++)
    for (let y = 0; y < rows; y++) {
      const from = ((z + first[0]) * shape[1] + y + first[1]) * shape[2] + first[2];
      part.set(/** @type {Uint8Array} */ (data).subarray(from, from + columns), (z * rows + y) * columns);
    }
  return { ...grid, shape: [d, rows, columns], data: part };
}

/** @param {any} store  of a workbench */
export function createSurface(store) {
  const canvas = h("canvas", {
    class: "stage surface",
    "aria-label": "Surface; drag to turn it",
    role: "img",
    tabindex: 0,
  });
  const element = h("div", { class: "stage-box", hidden: true }, canvas);
  /** @type {any} */
  let viewer;
  /** @type {Grid | null} */
  let drawn = null;
  const show = () =>
    guarded(async () => {
      const { shown, label } = store.values;
      const map = shown?.probability(label);
      if (!map) return;
      const { Niivue, NVImage } = await loadLibrary();
      if (!viewer) {
        viewer = new Niivue({
          backColor: [0.027, 0.035, 0.043, 1],
          show3Dcrosshair: false,
          isOrientCube: false,
          isOrientationTextVisible: false,
          loadingText: "",
          logLevel: "error",
        });
        await viewer.attachToCanvas(canvas);
        viewer.addColormap("reading", COLORS);
        viewer.setSliceType(viewer.sliceTypeRender);
        viewer.setRenderAzimuthElevation(135, 20);
      }
      if (drawn !== map) {
        drawn = map;
        viewer.volumes.slice().forEach((/** @type {any} */ volume) => viewer.removeVolume(volume));
        const buffer = encodeNifti(trim(map), shown.spacing);
        viewer.addVolume(
          await NVImage.loadFromUrl({ url: "probability.nii", buffer, colormap: "reading", cal_min: 1, cal_max: 255 }),
        );
        await viewer.setVolumeRenderIllumination(0.8);
      }
      apply();
    });
  const apply = () => {
    const [volume] = viewer?.volumes ?? [];
    if (!volume) return;
    volume.cal_min = 255 * store.values.threshold;
    volume.cal_max = Math.max(volume.cal_min + 1, 255);
    viewer.updateGLVolume();
    element.dataset.ready = "true";
  };
  store.on(["threshold"], () => element.hidden || apply());
  store.on(["label", "revision", "shown"], () => element.hidden || show());
  return { element, show };
}
