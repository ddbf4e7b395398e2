/** The canvas: pointer, wheel and touch, and what they change.
 * @module
 */
import { layersOf, paint, paintCross, paintScale } from "./paint.js";
import { PLANE_NAMES, clampVoxel, fit, placeOf, planeAxes, unproject, voxelAt, zoomAbout } from "./planes.js";
import { h } from "./dom.js";

/** @typedef {import("./planes.js").Triple} Triple */
/** @typedef {import("./case.js").Case} Case */

const CLICK = 4; // pixels that a pointer may move in a click
const WHEEL_STEP = 40; // pixels of a wheel per slice

export class Stage {
  /**
   * @param {any} store  of a workbench
   * @param {number} plane
   * @param {{click?: (voxel: Triple) => void, hover?: (voxel: Triple | null) => void}} [on]
   */
  constructor(store, plane, on = {}) {
    this.store = store;
    this.plane = plane;
    this.on = on;
    this.canvas = h("canvas", { class: "stage", tabindex: 0, role: "img", "aria-label": `${PLANE_NAMES[plane]} view` });
    this.element = h("div", { class: "stage-box" }, this.canvas);
    /** @type {import("./planes.js").Viewport | null} */
    this.viewport = null;
    this.isFitted = true; // until the user moves it
    this.frame = 0;
    this.wheel = 0;
    /** @type {Map<number, {x: number, y: number}>} */
    this.pointers = new Map();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  get shown() {
    return /** @type {Case | null} */ (this.store.values.shown);
  }

  get width() {
    return this.canvas.clientWidth;
  }

  get height() {
    return this.canvas.clientHeight;
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    if (this.isFitted) this.viewport = null;
    this.draw(true);
  }

  /** Show all, or the part that matters. */
  reset() {
    this.isFitted = true;
    this.viewport = null;
    this.draw();
  }

  home() {
    const shown = /** @type {Case} */ (this.shown);
    const whole = {
      shape: shown.shape,
      offset: /** @type {Triple} */ ([0, 0, 0]),
      channels: 1,
      data: new Uint8Array(),
    };
    const focus = this.store.values.focus;
    const box = focus ? { ...whole, ...focus } : whole;
    return fit(placeOf(box, shown.shape, shown.spacing, this.plane), this.width, this.height, focus ? 0.08 : 0.03);
  }

  /** Draw in the next frame, or at once. @param {boolean} [now] */
  draw(now = false) {
    if (now) this.render();
    else if (!this.frame) this.frame = requestAnimationFrame(() => this.render());
  }

  render() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const ctx = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const ratio = window.devicePixelRatio || 1;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this.width, this.height);
    const { shown } = this;
    if (!shown?.image || !this.width) return;
    this.viewport ??= this.home();
    const values = this.store.values;
    const { cursor, window: range } = values;
    const scene = {
      shown,
      plane: this.plane,
      cursor,
      viewport: this.viewport,
      window: range,
      layers: layersOf(shown, values),
    };
    paint(ctx, scene);
    if (values.cross && shown.isVolume) paintCross(ctx, scene, this.width, this.height);
    paintScale(ctx, scene, this.height);
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    if (!this.viewport) return;
    const home = this.home().scale;
    const scale = Math.min(60 * home, Math.max(0.5 * home, this.viewport.scale * factor));
    this.viewport = zoomAbout(this.viewport, scale / this.viewport.scale, x, y);
    this.isFitted = false;
    this.draw();
  }

  /** Move to another slice. @param {number} by */
  step(by) {
    const { shown } = this;
    if (!shown) return;
    const cursor = /** @type {Triple} */ ([...this.store.values.cursor]);
    cursor[this.plane] += by;
    this.store.set({ cursor: clampVoxel(cursor, shown.shape) });
  }

  /** @param {MouseEvent} event @returns {Triple | null}  null outside of the image */
  voxel(event) {
    const { shown } = this;
    if (!shown || !this.viewport) return null;
    const box = this.canvas.getBoundingClientRect();
    const point = unproject(this.viewport, event.clientX - box.left, event.clientY - box.top);
    const found = voxelAt(point, this.store.values.cursor, shown.shape, shown.spacing, this.plane);
    const { column, row } = planeAxes(this.plane);
    const isInside = [column, row].every((axis) => found[axis] > -0.5 && found[axis] < shown.shape[axis] - 0.5);
    return isInside ? clampVoxel(found, shown.shape) : null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("contextmenu", (/** @type {Event} */ event) => event.preventDefault());
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => this.onDown(event));
    canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.onMove(event));
    for (const type of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(type, (/** @type {PointerEvent} */ event) => this.onUp(event));
    }
    canvas.addEventListener("pointerleave", () => this.on.hover?.(null));
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    event.preventDefault();
    if (!this.shown) return;
    if (this.shown.isVolume && !event.ctrlKey && !event.metaKey) {
      this.wheel += event.deltaY;
      const steps = Math.trunc(this.wheel / WHEEL_STEP);
      this.wheel -= steps * WHEEL_STEP;
      if (steps) this.step(Math.sign(steps) * Math.min(3, Math.abs(steps)));
      return;
    }
    const box = this.canvas.getBoundingClientRect();
    this.zoom(
      Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)),
      event.clientX - box.left,
      event.clientY - box.top,
    );
  }

  /** @param {PointerEvent} event */
  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    const isWindow = event.button === 2 || event.shiftKey;
    this.drag = { x: event.clientX, y: event.clientY, isWindow, isClick: this.pointers.size === 1 && !isWindow };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before || !this.drag) {
      this.on.hover?.(this.voxel(event));
      return;
    }
    const [dx, dy] = [event.clientX - before.x, event.clientY - before.y];
    const far = Math.hypot(event.clientX - this.drag.x, event.clientY - this.drag.y) > CLICK;
    if (this.drag.isClick && !far && this.pointers.size === 1) return;
    this.drag.isClick = false;
    if (this.pointers.size === 2) this.pinch(event);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (this.pointers.size === 1) this.move(dx, dy);
  }

  /** @param {number} dx @param {number} dy */
  move(dx, dy) {
    if (this.drag?.isWindow) {
      const {
        window: { low, high },
        shown,
      } = this.store.values;
      const span = shown.input.range.high - shown.input.range.low;
      const width = Math.max(span / 200, high - low + (dx * span) / 500);
      const level = (low + high) / 2 + (dy * span) / 500;
      this.store.set({ window: { low: level - width / 2, high: level + width / 2 } });
    } else if (this.viewport) {
      this.viewport = { ...this.viewport, x: this.viewport.x + dx, y: this.viewport.y + dy };
      this.isFitted = false;
      this.draw();
    }
  }

  /** @param {PointerEvent} event */
  pinch(event) {
    const [one, two] = [...this.pointers.entries()].map(([id, at]) => ({ id, ...at }));
    const [moved, other] = one.id === event.pointerId ? [one, two] : [two, one];
    const was = Math.hypot(moved.x - other.x, moved.y - other.y);
    const is = Math.hypot(event.clientX - other.x, event.clientY - other.y);
    const box = this.canvas.getBoundingClientRect();
    this.zoom(is / Math.max(1, was), (event.clientX + other.x) / 2 - box.left, (event.clientY + other.y) / 2 - box.top);
  }

  /** @param {PointerEvent} event */
  onUp(event) {
    const isClick = this.drag?.isClick && event.type === "pointerup" && this.pointers.size === 1;
    this.pointers.delete(event.pointerId);
    if (!this.pointers.size) this.drag = undefined;
    const voxel = isClick ? this.voxel(event) : null;
    if (voxel) this.on.click?.(voxel);
  }
}
