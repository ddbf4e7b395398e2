/** The left of the page: what to segment, with which model, and what was done before.
 * @module
 */
import { percent } from "./analysis.js";
import { guarded, h } from "./dom.js";
import { drawnBy, listJobs } from "./jobs.js";
import { createSource } from "./source.js";

/** @typedef {{name: string, title: string, spatial_dims: number, image_channels: number, class_names: string[], palette: string[],
 *   takes_points: boolean, takes_evaluations: boolean, rater_names: string[], license_note?: string,
 *   limits: {samples: number, evaluations: number},
 *   defaults: {samples: number, evaluations: number | null, seed: number}}} Model */

/**
 * @param {HTMLElement} root
 * @param {{input: (load: () => Promise<any>) => void, run: () => void, cancel: () => void, model: () => void, job: (id: string) => void}} on
 */
export function createSetup(root, on) {
  const source = createSource(on.input);
  const parameters = createParameters(on.model);
  const recent = createRecent(on.job, on.input);
  const run = h("button", { type: "button", class: "primary", onclick: on.run }, "Draw samples");
  const cancel = h("button", { type: "button", class: "secondary", hidden: true, onclick: on.cancel }, "Cancel");
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const text = h("p", { class: "muted", role: "status" });
  const progress = h("div", { class: "progress", hidden: true }, bar, text);
  root.replaceChildren(
    source.element,
    parameters.element,
    h("div", { class: "actions" }, run, cancel, progress),
    recent.element,
  );
  return {
    source,
    parameters,
    recent,
    /** @param {boolean} isReady @param {string} label */
    ready(isReady, label) {
      run.disabled = !isReady;
      run.textContent = label;
    },
    /** @param {{part: number, text: string} | null} state  null when nothing runs */
    busy(state) {
      run.hidden = !!state;
      cancel.hidden = progress.hidden = !state;
      if (!state) return;
      bar.value = state.part;
      bar.title = percent(state.part);
      if (text.textContent !== state.text) text.textContent = state.text;
    },
  };
}

/** Models that can segment an input, those of its dimension first. @param {Model[]} all @param {any} input  null: all models */
export function fittingModels(all, input) {
  if (!input) return all;
  return all.filter((model) => !misfit(model, input)).sort((a, b) => b.spatial_dims - a.spatial_dims);
}

/** Why a model cannot segment an input; "" if it can. @param {Model} model @param {any} input  null: none yet */
export function misfit(model, input) {
  if (!input) return "";
  if (model.spatial_dims > input.spatial_dims) return "for volumes; this is a single image";
  if (model.image_channels !== input.channels)
    return `for ${colors(model.image_channels)} images; this one is ${colors(input.channels)}`;
  return "";
}

/** @param {number} channels */
function colors(channels) {
  return { 1: "gray", 3: "color" }[channels] ?? `${channels}-channel`;
}

/** @param {() => void} onModel */
function createParameters(onModel) {
  /** @type {Model[]} */
  let models = [];
  let isChosen = false; // by the user: then it stays as long as it fits
  const model = h("select", {
    id: "model",
    onchange: () => {
      isChosen = true;
      fill();
      onModel();
    },
  });
  const numeric = (/** @type {string} */ id, /** @type {number} */ min) =>
    h("input", { id, type: "number", min, step: 1, inputmode: "numeric", oninput: () => typed.add(id) });
  /** @type {Set<string>} */
  const typed = new Set(); // fields that the user changed: another model leaves them
  const [samples, evaluations, seed] = [numeric("samples", 1), numeric("evaluations", 1), numeric("seed", 0)];
  const rater = h("select", { id: "rater" });
  const note = h("p", { class: "muted small" });
  const field = (/** @type {string} */ text, /** @type {any} */ control, /** @type {string} */ help) =>
    h("label", { class: "field", title: help }, h("span", {}, text), control);
  const fields = [
    field("Samples", samples, "How many plausible segmentations to draw"),
    field("Evaluations", evaluations, "Network evaluations per sample: more are slower and often better"),
    field("Seed", seed, "The same seed gives the same samples"),
  ];
  const hand = field("Whose hand", rater, "Draw as any of the raters of the training, or as one of them would");
  /** Offer the raters that the model knows apart. @param {string[]} names @param {string | null} chosen */
  const fillRaters = (names, chosen) => {
    rater.replaceChildren(
      h("option", { value: "" }, "Anyone"),
      ...names.map((name) => h("option", { value: name, ".selected": name === chosen }, name)),
    );
    hand.hidden = !names.length;
  };
  const current = () => models.find(({ name }) => name === model.value);
  const fill = () => {
    const chosen = current();
    if (!chosen) return;
    if (!typed.has("samples")) samples.value = chosen.defaults.samples;
    samples.max = chosen.limits.samples;
    evaluations.value = chosen.defaults.evaluations ?? "";
    evaluations.max = chosen.limits.evaluations;
    fields[1].hidden = !chosen.takes_evaluations;
    if (!typed.has("seed")) seed.value = chosen.defaults.seed;
    fillRaters(chosen.rater_names, rater.value);
    note.textContent = chosen.license_note ?? "";
    note.hidden = !chosen.license_note;
  };
  return {
    element: h(
      "section",
      { class: "panel", "aria-label": "Model" },
      h("h2", {}, "Model"),
      h("label", { class: "field wide" }, h("span", { class: "visually-hidden" }, "Model"), model),
      hand,
      h("div", { class: "fields" }, ...fields),
      note,
    ),
    current,
    /** Offer the models that fit an input, those of its dimension first, and say why others do not. @param {Model[]} all @param {any} input @param {string} [preferred] */
    offer(all, input, preferred) {
      models = fittingModels(all, input);
      const before = model.value;
      model.replaceChildren(
        ...(models.length ? [] : [h("option", { value: "" }, "No model fits this image")]),
        ...models.map(({ name, title }) => h("option", { value: name }, title)),
        ...all
          .filter((one) => misfit(one, input))
          .map((one) => h("option", { value: one.name, disabled: true }, `${one.title}: ${misfit(one, input)}`)),
      );
      const wanted = [preferred, isChosen && before].find((name) => models.some((m) => m.name === name));
      if (wanted) model.value = wanted;
      if (model.value !== before) fill();
    },
    /** Choose a rater, null: anyone; one that the model does not know is left out. @param {string | null} name */
    drawAs: (name) => fillRaters(current()?.rater_names ?? [], name),
    values: () => ({
      model: model.value,
      samples: Number(samples.value),
      evaluations: current()?.takes_evaluations && evaluations.value ? Number(evaluations.value) : null,
      seed: Number(seed.value),
      rater: rater.value || null,
    }),
  };
}

/**
 * Results to open again, and scans that arrived from elsewhere.
 * @param {(id: string) => void} onJob
 * @param {(load: () => Promise<any>) => void} onInput
 */
function createRecent(onJob, onInput) {
  const list = h("ul", { class: "recent" });
  const element = h(
    "section",
    { class: "panel last", "aria-label": "Recent", hidden: true },
    h("h2", {}, "Recent"),
    list,
  );
  const row = (/** @type {string} */ name, /** @type {string} */ text, /** @type {() => void} */ open) =>
    h(
      "li",
      {},
      h("button", { type: "button", onclick: open }, h("span", {}, name), h("span", { class: "muted" }, text)),
    );
  const refresh = async () => {
    const { jobs, unused } = await listJobs();
    const open = jobs.filter(({ state }) => ["done", "running", "queued"].includes(state));
    const rows = [
      ...unused.map((input) => ({
        at: input.created,
        row: row(input.name, `not segmented · ${when(input.created)}`, () => onInput(async () => input)),
      })),
      ...open.map((job) => ({
        at: job.created,
        row: row(job.input.name, `${drawnBy(job)} · ${job.state === "done" ? when(job.created) : job.state}`, () =>
          onJob(job.id),
        ),
      })),
    ];
    element.hidden = !rows.length;
    list.replaceChildren(
      ...rows
        .sort((a, b) => b.at - a.at)
        .slice(0, 8)
        .map(({ row: made }) => made),
    );
  };
  // Another program may send a scan at any time.
  window.addEventListener("focus", () => refresh().catch(() => {}));
  return { element, refresh: () => guarded(refresh) };
}

/** @param {number} created  seconds */
export function when(created) {
  const date = new Date(1000 * created);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString();
}
