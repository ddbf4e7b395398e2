/** A measurement over all samples: median, interval, histogram with a brush, and the probability of a range.
 * @module
 */
import { histogram, inRange, number, percent, plural, probabilityIn, sum, ticks } from "./analysis.js";
import { readingColor } from "./colors.js";
import { h } from "./dom.js";

/** @typedef {{low: number, high: number}} Range */

const SIZE = { width: 320, height: 128, left: 4, right: 4, top: 8, bottom: 34 };
const GRAB = 7; // pixels around an edge of the brush
const DIAMETER = 6; // mm; from here on guidelines ask for follow-up of a nodule

/** @param {HTMLElement} root @param {any} store */
export function createMeasure(root, store) {
  const answer = h("output", { class: "answer" });
  const chart = h("div", { class: "chart" });
  const question = createQuestion(store);
  const facts = h("div", { class: "facts" });
  const key = h("p", { class: "chart-key", "aria-hidden": "true" });
  const picker = h("select", {
    "aria-label": "Measurement",
    onchange: () => store.set({ measure: picker.value, range: null }),
  });
  root.replaceChildren(
    h("h2", {}, "Measurement"),
    picker,
    facts,
    chart,
    key,
    h("div", { class: "question" }, question.head, h("div", { class: "question-row" }, question.element, answer)),
  );

  const measure = () =>
    store.values.shown?.result?.measures.find((/** @type {any} */ m) => m.key === store.values.measure);
  const rebuild = () => {
    const { shown } = store.values;
    const measures = shown?.result?.measures ?? [];
    root.hidden = !measures.length;
    picker.replaceChildren(
      ...measures.map((/** @type {any} */ m) =>
        h("option", { value: m.key, ".selected": m.key === store.values.measure }, measureTitle(m, shown)),
      ),
    );
  };
  const redraw = () => {
    const chosen = measure();
    if (!chosen) return;
    question.show(chosen, store.values.shown);
    facts.replaceChildren(...describe(chosen), ...calibratedFact(chosen, store.values.shown.result.calibration));
    chart.replaceChildren(drawChart(store, chosen));
    const hasRaters = ratersOf(store.values.shown, chosen.key).length > 0;
    key.textContent = `○ median   ━ ${percent(chosen.level)} of the samples${hasRaters ? "   ▼ raters" : ""}`;
    update();
  };
  const update = () => {
    const chosen = measure();
    if (!chosen) return;
    const { shown, range } = store.values;
    const values = valuesOf(shown, chosen.key);
    answer.textContent = percent(probabilityIn(values, shown.weights, range ?? question.range()));
    answer.classList.toggle("active", !!range);
  };
  store.on(["shown", "revision"], rebuild);
  store.on(["shown", "revision", "measure"], redraw);
  store.on(["range"], () => {
    const chosen = measure();
    if (!chosen) return;
    if (store.values.range) question.adopt(store.values.range);
    chart.replaceChildren(drawChart(store, chosen));
    update();
  });
  question.onchange = update;
}

/** @param {any} shown @param {string} key @returns {(number | null)[]} */
function valuesOf(shown, key) {
  return shown.result.samples.map((/** @type {any} */ sample) => sample.measures[key] ?? null);
}

/** @param {any} shown @param {string} key @returns {number[]} */
function ratersOf(shown, key) {
  return (shown.result.raters?.measures?.[key] ?? []).filter((/** @type {any} */ v) => v != null);
}

/** @param {any} measure @param {any} shown */
function measureTitle(measure, shown) {
  const kind = shown.classes.find((/** @type {any} */ c) => c.index === measure.class)?.name ?? measure.class;
  return shown.foreground.length > 1 && kind ? `${measure.title} of ${kind}` : measure.title;
}

/** @param {import("./case.js").Measure} measure */
function describe({ median, interval, level, unit }) {
  const fact = (/** @type {string} */ name, /** @type {string} */ value) =>
    h("div", { class: "fact" }, h("span", { class: "fact-name" }, name), h("span", { class: "fact-value" }, value));
  return [
    fact("Median", `${number(median)} ${unit}`),
    fact(
      `${Math.round(100 * level)}% interval`,
      interval ? `${number(interval[0])} – ${number(interval[1])} ${unit}` : "–",
    ),
  ];
}

/** The calibrated interval, with what it was calibrated on and assumes.
 * @param {import("./case.js").Measure} measure @param {string | null | undefined} basis
 */
function calibratedFact({ calibrated, level, unit }, basis) {
  if (!calibrated || !basis) return [];
  const value = `${number(calibrated[0])} – ${number(calibrated[1])} ${unit}`;
  const name = h("span", { class: "fact-name" }, `${Math.round(100 * level)} % interval, ${basis}`);
  return [h("div", { class: "fact" }, name, h("span", { class: "fact-value" }, value))];
}

/** The sentence "P(longest diameter above 6 mm)", to type in. @param {any} store */
function createQuestion(store) {
  const commit = () => {
    between.hidden = operator.value !== "between";
    if (first.value === "") return;
    store.set({ range: self.range() });
    self.onchange();
  };
  const operator = h(
    "select",
    { "aria-label": "Comparison", onchange: commit },
    h("option", { value: "above" }, "above"),
    h("option", { value: "below" }, "below"),
    h("option", { value: "between" }, "between"),
  );
  const first = h("input", {
    type: "number",
    step: "any",
    inputmode: "decimal",
    "aria-label": "Limit",
    oninput: commit,
  });
  const second = h("input", {
    type: "number",
    step: "any",
    inputmode: "decimal",
    "aria-label": "Upper limit",
    oninput: commit,
  });
  const between = h("span", { class: "between", hidden: true }, " and ", second);
  const unit = h("span", { class: "unit" });
  const clear = h(
    "button",
    {
      type: "button",
      class: "link",
      hidden: true,
      onclick: () => store.set({ range: null }),
      title: "Show all samples again",
    },
    "Clear",
  );
  store.on(["range"], () => {
    clear.hidden = !store.values.range;
  });
  const title = h("span", {});
  /** @type {[string, any]} */
  let asked = ["", null];
  const self = {
    head: h("div", { class: "question-head" }, title, clear),
    element: h("div", { class: "sentence" }, operator, first, between, unit),
    onchange: () => {},
    /** @returns {Range} */
    range() {
      const [a, b] = [Number(first.value), Number(second.value)];
      if (operator.value === "above") return { low: a + Number.EPSILON * Math.abs(a), high: Infinity };
      if (operator.value === "below") return { low: -Infinity, high: a - Number.EPSILON * Math.abs(a) };
      return { low: Math.min(a, b), high: Math.max(a, b) };
    },
    /** Start with a limit that makes sense. @param {import("./case.js").Measure} measure @param {any} shown */
    show(measure, shown) {
      unit.textContent = measure.unit;
      title.textContent = `Probability that the ${measure.title[0].toLowerCase()}${measure.title.slice(1)} is`;
      if (asked[0] === measure.key && asked[1] === shown) return;
      asked = [measure.key, shown];
      operator.value = "above";
      between.hidden = true;
      first.value =
        measure.unit === "mm" && /diameter/i.test(measure.title)
          ? DIAMETER
          : number(measure.median).replace(/[^\d.-]/g, "");
    },
    /** Say in words what was brushed. @param {Range} range */
    adopt(range) {
      if (range.low === self.range().low && range.high === self.range().high) return;
      operator.value = "between";
      between.hidden = false;
      first.value = Number(range.low.toPrecision(3));
      second.value = Number(range.high.toPrecision(3));
    },
  };
  return self;
}

/** @param {any} store @param {import("./case.js").Measure} measure */
function drawChart(store, measure) {
  const { shown, range } = store.values;
  const values = valuesOf(shown, measure.key);
  const raters = ratersOf(shown, measure.key);
  if (!values.some((value) => value != null)) return h("p", { class: "muted" }, "No sample has this measurement.");
  const { bins, low, high } = histogram(values, shown.weights, raters);
  const [left, right] = [SIZE.left, SIZE.width - SIZE.right];
  const base = SIZE.height - SIZE.bottom;
  const scale = {
    x: (/** @type {number} */ v) => left + ((v - low) / (high - low)) * (right - left),
    value: (/** @type {number} */ x) => low + ((x - left) / (right - left)) * (high - low),
  };
  const most = Math.max(...bins.map(({ weight }) => weight));
  const bars = bins.flatMap((bin) => {
    let top = base;
    return partsOf(bin.samples, shown, values, range).map(({ reading, isLit, weight, count }) => {
      const height = (weight / most) * (base - SIZE.top);
      top -= height;
      const name = shown.result.hypotheses[reading]?.name ?? "";
      const bar = h(
        "rect",
        {
          x: scale.x(bin.low) + 1,
          width: Math.max(1, scale.x(bin.high) - scale.x(bin.low) - 2),
          y: top,
          height,
          class: isLit ? "bar" : "bar off",
        },
        h("title", {}, `${number(bin.low)} – ${number(bin.high)} ${measure.unit}: ${plural(count, "sample")}, ${name}`),
      );
      bar.style.setProperty("--reading", readingColor(reading));
      return bar;
    });
  });
  const svg = h(
    "svg",
    { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": chartLabel(measure, values.length) },
    ...bars,
    h("line", { x1: left, x2: right, y1: base + 0.5, y2: base + 0.5, class: "axis" }),
    ...ticks(low, high, 5).map((v) =>
      h(
        "text",
        {
          x: scale.x(v),
          y: SIZE.height - 4,
          class: "tick",
          "text-anchor": scale.x(v) < left + 12 ? "start" : scale.x(v) > right - 12 ? "end" : "middle",
        },
        number(v),
      ),
    ),
    ...intervalMark(measure, scale.x, base + 9),
    ...raters.map((/** @type {number} */ v) =>
      h(
        "path",
        { d: `M${scale.x(v)} ${base - 1}l-4 -7h8z`, class: "rater-mark" },
        h("title", {}, `Rater: ${number(v)}`),
      ),
    ),
    ...brushMark(range, scale.x, left, right, base),
  );
  listenBrush(svg, store, scale, range);
  return svg;
}

/**
 * Split the samples of a bin by reading, and by whether the range holds them.
 * @param {number[]} samples
 * @param {any} shown
 * @param {(number | null)[]} values
 * @param {Range | null} range
 */
function partsOf(samples, shown, values, range) {
  /** @type {Map<string, {reading: number, isLit: boolean, weight: number, count: number}>} */
  const parts = new Map();
  const total = sum(shown.weights);
  for (const i of samples) {
    const reading = shown.result.samples[i].hypothesis ?? 0;
    const isLit = !range || inRange(values[i], range);
    const key = `${reading} ${isLit}`;
    const part = parts.get(key) ?? { reading, isLit, weight: 0, count: 0 };
    parts.set(key, part);
    part.weight += shown.weights[i] / total;
    part.count++;
  }
  return [...parts.values()].sort((a, b) => Number(b.isLit) - Number(a.isLit) || a.reading - b.reading);
}

/** @param {import("./case.js").Measure} measure @param {number} count */
function chartLabel({ title, median, interval, unit }, count) {
  const ends = interval ? `, interval ${number(interval[0])} to ${number(interval[1])} ${unit}` : "";
  return `Histogram of ${title} over ${count} samples: median ${number(median)} ${unit}${ends}`;
}

/** @param {import("./case.js").Measure} measure @param {(value: number) => number} x @param {number} y */
function intervalMark({ interval, median }, x, y) {
  if (!interval || median == null) return [];
  return [
    h("line", { x1: x(interval[0]), x2: x(interval[1]), y1: y, y2: y, class: "interval" }),
    h("circle", { cx: x(median), cy: y, r: 3.5, class: "median" }),
  ];
}

/** @param {Range | null} range @param {(value: number) => number} x @param {number} left @param {number} right @param {number} base */
function brushMark(range, x, left, right, base) {
  if (!range) return [];
  const [from, to] = [range.low, range.high].map((v) => Math.min(right, Math.max(left, x(v))));
  const edges = [
    [range.low, from],
    [range.high, to],
  ].filter(([value]) => Number.isFinite(value));
  return [
    h("rect", { x: from, width: Math.max(0, to - from), y: 0, height: base, class: "brush" }),
    ...edges.map(([, at]) => h("line", { x1: at, x2: at, y1: 0, y2: base, class: "brush-edge" })),
  ];
}

/**
 * Drag over the chart to choose a range; drag an edge to move it; click to clear.
 * @param {any} svg
 * @param {any} store
 * @param {{x: (value: number) => number, value: (x: number) => number}} scale
 * @param {Range | null} range
 */
function listenBrush(svg, store, scale, range) {
  const place = (/** @type {PointerEvent} */ event) => {
    const box = chartBox();
    return Math.min(
      SIZE.width - SIZE.right,
      Math.max(SIZE.left, ((event.clientX - box.left) / box.width) * SIZE.width),
    );
  };
  // The chart is drawn anew while the brush moves: its parent stays.
  let parent = svg;
  const chartBox = () => parent.getBoundingClientRect();
  svg.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    parent = svg.parentElement;
    event.preventDefault();
    const start = place(event);
    const grabbed =
      range && [range.low, range.high].find((v) => Number.isFinite(v) && Math.abs(scale.x(v) - start) < GRAB);
    const fixed = grabbed == null || !range ? scale.value(start) : grabbed === range.low ? range.high : range.low;
    let moved = false;
    const move = (/** @type {PointerEvent} */ next) => {
      moved ||= Math.abs(place(next) - start) > 3;
      if (!moved) return;
      const at = scale.value(place(next));
      store.set({ range: { low: Math.min(fixed, at), high: Math.max(fixed, at) } });
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      if (!moved) store.set({ range: null });
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  });
}
