/** The left of the page: what to segment, with which model, and what was done before.
 * @module
 */
import { percent } from "./analysis.js";
import { change } from "./api.js";
import { guarded, h } from "./dom.js";
import { listJobs } from "./jobs.js";

/** @typedef {{name: string, title: string, spatial_dims: number, image_channels: number, class_names: string[], palette: string[],
 *   takes_points: boolean, takes_evaluations: boolean, license_note?: string,
 *   limits: {samples: number, evaluations: number},
 *   defaults: {samples: number, evaluations: number | null, seed: number}}} Model */

/** Files of a drop, also those in folders. @param {DataTransfer} data @returns {Promise<File[]>} */
export async function droppedFiles(data) {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry != null);
  if (!entries.some((entry) => entry.isDirectory)) return [...data.files];
  return (await Promise.all(entries.map(walk))).flat();
}

/** @param {any} entry @returns {Promise<File[]>} */
async function walk(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  /** @type {File[]} */
  const files = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return files;
    for (const child of batch) files.push(...(await walk(child)));
  }
}

/** @param {File[]} files @param {File[]} raters @param {string} [spacing]  millimeters per pixel */
export function upload(files, raters, spacing = "") {
  const form = new FormData();
  if (spacing) form.append("spacing", spacing);
  files.forEach((file) => form.append("files", file, file.name));
  raters.forEach((file) => form.append("raters", file, file.name));
  return change("/inputs", form);
}

/** @param {any} input */
export function describeInput(input) {
  const size = [...input.shape].reverse().join(" × ");
  const spacing = input.spacing
    ? ` · ${[...input.spacing]
        .reverse()
        .map((/** @type {number} */ mm) => Number(mm.toPrecision(3)))
        .join(" × ")} mm`
    : "";
  return `${size}${spacing}`;
}

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

/** @param {(load: () => Promise<any>) => void} onInput */
function createSource(onInput) {
  const files = h("input", {
    type: "file",
    multiple: true,
    class: "visually-hidden",
    "aria-label": "Image files",
    tabindex: -1,
    onchange: () => choose([...files.files]),
  });
  const folder = h("input", {
    type: "file",
    class: "visually-hidden",
    "aria-label": "DICOM folder",
    webkitdirectory: true,
    tabindex: -1,
    onchange: () => choose([...folder.files]),
  });
  const raters = h("input", {
    type: "file",
    multiple: true,
    class: "visually-hidden",
    "aria-label": "Label maps of raters",
    tabindex: -1,
    onchange: () => renew(),
  });
  const spacing = h("input", {
    type: "number",
    min: 0.001,
    step: "any",
    inputmode: "decimal",
    placeholder: "unknown",
    onchange: () => renew(),
  });
  const spacingField = h(
    "label",
    { class: "field inline", hidden: true },
    h("span", {}, "Millimeters per pixel"),
    spacing,
  );
  const renew = () => {
    const [images, maps] = [last, [...raters.files]];
    if (images.length) onInput(() => upload(images, maps, spacing.value));
  };
  /** @type {File[]} */
  let last = [];
  const choose = (/** @type {File[]} */ chosen) => {
    if (!chosen.length) return;
    last = chosen;
    spacing.value = raters.value = "";
    onInput(() => upload(chosen, []));
    files.value = folder.value = "";
  };
  const current = h("div", { class: "current", hidden: true });
  const addRaters = h(
    "button",
    { type: "button", class: "link", hidden: true, onclick: () => raters.click() },
    "Add raters’ label maps",
  );
  const zone = h(
    "div",
    { class: "drop" },
    h("p", { class: "drop-title" }, "Drop an image or a scan"),
    h("p", { class: "muted" }, "PNG, JPEG, TIFF, NIfTI, NRRD, or a DICOM folder"),
    h(
      "div",
      { class: "drop-buttons" },
      h("button", { type: "button", class: "secondary", onclick: () => files.click() }, "Choose files"),
      h("button", { type: "button", class: "secondary", onclick: () => folder.click() }, "Folder"),
    ),
    files,
    folder,
    raters,
  );
  listenDrop(zone, choose);
  const examples = h("div", { class: "examples" });
  /** @type {Map<string, number>} */
  const made = new Map();
  const pick = (/** @type {any} */ { name }) => {
    last = [];
    const number = made.get(name) ?? 0; // another one each time
    made.set(name, number + 1);
    onInput(() => change("/inputs", { example: name, number }));
  };
  return {
    pick,
    element: h(
      "section",
      { class: "panel", "aria-label": "Image" },
      h("h2", {}, "Image"),
      zone,
      current,
      spacingField,
      addRaters,
      examples,
    ),
    /** @param {any[]} list */
    examples(list) {
      examples.replaceChildren(
        h("p", { class: "label" }, "Or try an example"),
        ...list.map((example) =>
          h(
            "button",
            {
              type: "button",
              class: "chip",
              onclick: () => pick(example),
            },
            example.title,
          ),
        ),
      );
    },
    /** @param {any} input */
    show(input) {
      current.hidden = false;
      addRaters.hidden = !last.length || input.rater_names.length > 0;
      spacingField.hidden = !last.length || input.spatial_dims === 3 || (input.spacing != null && !spacing.value);
      current.replaceChildren(
        h("strong", { title: input.name }, input.name),
        h("span", { class: "muted" }, describeInput(input)),
      );
    },
  };
}

/** Accept drops on the whole page. @param {HTMLElement} zone @param {(files: File[]) => void} choose */
function listenDrop(zone, choose) {
  const over = (/** @type {boolean} */ isOver) => {
    zone.classList.toggle("over", isOver);
    document.body.classList.toggle("dropping", isOver);
  };
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) over(false);
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer)
      guarded(async () => choose(await droppedFiles(/** @type {DataTransfer} */ (event.dataTransfer))));
  });
}

/** Models that can segment an input, those of its dimension first. @param {Model[]} all @param {any} input  null: all models */
export function fittingModels(all, input) {
  if (!input) return all;
  return all
    .filter(
      (model) =>
        model.spatial_dims <= input.spatial_dims && (input.channels == null || model.image_channels === input.channels),
    )
    .sort((a, b) => b.spatial_dims - a.spatial_dims);
}

/** @param {() => void} onModel */
function createParameters(onModel) {
  /** @type {Model[]} */
  let models = [];
  const model = h("select", {
    id: "model",
    onchange: () => {
      fill();
      onModel();
    },
  });
  const samples = h("input", { id: "samples", type: "number", min: 1, step: 1, inputmode: "numeric" });
  const evaluations = h("input", { id: "evaluations", type: "number", min: 1, step: 1, inputmode: "numeric" });
  const seed = h("input", { id: "seed", type: "number", min: 0, step: 1, inputmode: "numeric" });
  const note = h("p", { class: "muted small" });
  const field = (/** @type {string} */ text, /** @type {any} */ control, /** @type {string} */ help) =>
    h("label", { class: "field", title: help }, h("span", {}, text), control);
  const fields = [
    field("Samples", samples, "How many plausible segmentations to draw"),
    field("Evaluations", evaluations, "Network evaluations per sample: more are slower and often better"),
    field("Seed", seed, "The same seed gives the same samples"),
  ];
  const current = () => models.find(({ name }) => name === model.value);
  const fill = () => {
    const chosen = current();
    if (!chosen) return;
    samples.value = chosen.defaults.samples;
    samples.max = chosen.limits.samples;
    evaluations.value = chosen.defaults.evaluations ?? "";
    evaluations.max = chosen.limits.evaluations;
    fields[1].hidden = !chosen.takes_evaluations;
    seed.value = chosen.defaults.seed;
    note.textContent = chosen.license_note ?? "";
    note.hidden = !chosen.license_note;
  };
  return {
    element: h(
      "section",
      { class: "panel", "aria-label": "Model" },
      h("h2", {}, "Model"),
      h("label", { class: "field wide" }, h("span", { class: "visually-hidden" }, "Model"), model),
      h("div", { class: "fields" }, ...fields),
      note,
    ),
    current,
    /** Offer the models that fit an input, those of its dimension first. @param {Model[]} all @param {any} input @param {string} [preferred] */
    offer(all, input, preferred) {
      models = fittingModels(all, input);
      const before = model.value;
      model.replaceChildren(...models.map(({ name, title }) => h("option", { value: name }, title)));
      const wanted = [preferred, before].find((name) => models.some((m) => m.name === name));
      if (wanted) model.value = wanted;
      if (model.value !== before) fill();
    },
    values: () => ({
      model: model.value,
      samples: Number(samples.value),
      evaluations: current()?.takes_evaluations && evaluations.value ? Number(evaluations.value) : null,
      seed: Number(seed.value),
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
        row: row(job.input.name, `${job.model} · ${job.state === "done" ? when(job.created) : job.state}`, () =>
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
