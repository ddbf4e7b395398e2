/** The third tab: models on one image, or two scans of one lesion, side by side.
 * @module
 */
import { capital, number, percent } from "./analysis.js";
import { change } from "./api.js";
import { Case, openCase } from "./case.js";
import { createStore, byId, guarded, h } from "./dom.js";
import { classesOf, listJobs, startJob, watch } from "./jobs.js";
import { fittingModels, when } from "./setup.js";
import { Stage } from "./stage.js";
import { defaultMeasure } from "./workbench.js";

const MOST = 4; // side by side

/** @param {{models: any[], examples: any[]}} offer @param {(is: boolean) => void} onConnection */
export function createCompare(offer, onConnection) {
  const board = byId("compare-board");
  /** @type {(() => void)[]} */
  let stops = [];
  const clear = () => {
    stops.forEach((stop) => stop());
    stops = [];
    board.replaceChildren();
  };
  const models = createModels(offer);
  const growth = createGrowth();
  byId("compare-models").replaceChildren(models.element);
  byId("compare-growth").replaceChildren(growth.element);
  models.element.onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    clear();
    guarded(async () => {
      stops = await compareModels(board, offer, models.values(), onConnection);
    });
  };
  growth.element.onsubmit = (/** @type {Event} */ event) => {
    event.preventDefault();
    clear();
    guarded(() => showGrowth(board, growth.values()));
  };
  return {
    refresh: () =>
      guarded(async () => {
        const jobs = (await listJobs()).jobs.filter(({ state }) => state === "done");
        models.offer(jobs);
        growth.offer(jobs);
      }),
  };
}

/** @param {any} job */
function jobTitle(job) {
  return `${job.input.name} · ${job.model} · ${when(job.created)}`;
}

/** @param {{models: any[], examples: any[]}} offer */
function createModels(offer) {
  const source = h("select", { id: "compare-source" });
  const boxes = h("div", { class: "checks", role: "group", "aria-label": "Models" });
  /** @type {any[]} */
  let options = [];
  const fill = () => {
    const fitting = fittingModels(offer.models, options[Number(source.value)]);
    boxes.replaceChildren(
      ...[
        ...fitting.map((model, i) =>
          h(
            "label",
            { class: "check" },
            h("input", { type: "checkbox", value: model.name, ".checked": i < 2 }),
            model.title,
          ),
        ),
        fitting.length < 2 &&
          h("p", { class: "muted" }, "Start the studio with --model and the folder of a run to offer more models."),
      ].filter(Boolean),
    );
  };
  source.onchange = fill;
  const element = h(
    "form",
    { class: "panel" },
    h("h2", {}, "Models on one image"),
    h("label", { class: "field wide" }, h("span", {}, "Image"), source),
    boxes,
    h("button", { class: "primary", type: "submit" }, "Compare"),
  );
  return {
    element,
    /** @param {any[]} jobs */
    offer(jobs) {
      const seen = new Set();
      const inputs = jobs.map(({ input }) => input).filter(({ id }) => !seen.has(id) && seen.add(id));
      options = [
        ...inputs.map((input) => ({ ...input, title: input.name })),
        ...offer.examples.map((example) => ({ ...example, title: `Example: ${example.title}`, example: example.name })),
      ];
      source.replaceChildren(...options.map(({ title }, i) => h("option", { value: i }, title)));
      fill();
    },
    values: () => ({
      ...options[Number(source.value)],
      models: [...boxes.querySelectorAll("input:checked")]
        .slice(0, MOST)
        .map((box) => /** @type {HTMLInputElement} */ (box).value),
    }),
  };
}

/** A canvas with its title and facts; all of a board move through slices together.
 * @param {string} title @param {Case} shown */
function createTile(title, shown) {
  const store = createStore({
    shown,
    revision: 0,
    view: "readings",
    sample: 0,
    reading: null,
    label: 1,
    threshold: 0.5,
    range: null,
    measure: null,
    raters: shown.raters.length > 0,
    cross: false,
    focus: null,
    window: { ...shown.input.window },
    cursor: /** @type {[number, number, number]} */ ([
      shown.keySlice(),
      Math.floor(shown.shape[1] / 2),
      Math.floor(shown.shape[2] / 2),
    ]),
  });
  const stage = new Stage(store, 0);
  const facts = h("div", { class: "tile-facts" });
  const describe = () => {
    const { result } = shown;
    if (!result) {
      facts.replaceChildren(h("span", { class: "muted" }, `${shown.drawn.indices.length} samples`));
      return;
    }
    const measure = result.measures.find(({ key }) => key === defaultMeasure(shown));
    const lines = [
      result.hypotheses[0] && [capital(result.hypotheses[0].name), percent(result.hypotheses[0].probability)],
      measure && [measure.title, `${number(measure.median)} ${measure.unit}`],
      measure?.interval && [
        `${Math.round(100 * measure.level)} % interval`,
        `${measure.interval.map(number).join(" – ")} ${measure.unit}`,
      ],
      ...(result.scores?.ged == null ? [] : [["GED", Number(result.scores.ged).toFixed(3)]]),
    ];
    facts.replaceChildren(
      ...lines
        .filter(Boolean)
        .map((line) =>
          h(
            "div",
            { class: "fact" },
            h("span", { class: "fact-name" }, /** @type {string[]} */ (line)[0]),
            h("span", { class: "fact-value" }, /** @type {string[]} */ (line)[1]),
          ),
        ),
    );
  };
  store.on(["revision", "cursor", "window", "shown"], () => {
    stage.draw();
    describe();
  });
  describe();
  const element = h("figure", { class: "tile" }, h("figcaption", {}, title), stage.element, facts);
  return { element, store, update: () => store.set({ revision: store.values.revision + 1 }) };
}

/** @param {ReturnType<createTile>[]} tiles */
function joinTiles(tiles) {
  for (const tile of tiles) {
    tile.store.on(["cursor", "window"], () => {
      const { cursor, window } = tile.store.values;
      tiles.forEach((other) => other.store.set({ cursor, window }));
    });
  }
}

/**
 * @param {HTMLElement} board
 * @param {{models: any[]}} offer
 * @param {any} chosen
 * @param {(is: boolean) => void} onConnection
 */
async function compareModels(board, offer, chosen, onConnection) {
  if (!chosen.models.length) throw new Error("Choose at least one model.");
  const input = chosen.example ? await change("/inputs", { example: chosen.example }) : chosen;
  const first = new Case(input, []);
  await Promise.all([first.loadImage(), first.loadRaters()]);
  const tiles = chosen.models.map((/** @type {string} */ name) => {
    const model = offer.models.find((one) => one.name === name);
    return { model, tile: createTile(model.title, first.renewed(classesOf(model))) };
  });
  board.replaceChildren(h("div", { class: "tiles" }, ...tiles.map((/** @type {any} */ { tile }) => tile.element)));
  joinTiles(tiles.map((/** @type {any} */ { tile }) => tile));
  return Promise.all(
    tiles.map(async (/** @type {any} */ { model, tile }) => {
      const { samples, evaluations, seed } = model.defaults;
      const job = await startJob(
        input.id,
        { model: model.name, samples, evaluations: model.takes_evaluations ? evaluations : null, seed },
        null,
      );
      return watch(job, tile.store.values.shown, {
        update: tile.update,
        progress: () => {},
        connection: onConnection,
        end: (_, error) =>
          guarded(async () => {
            tile.update();
            if (error) throw error;
          }),
      });
    }),
  );
}

function createGrowth() {
  const before = h("select", { id: "growth-before" });
  const after = h("select", { id: "growth-after" });
  /** @type {any[]} */
  let known = [];
  const element = h(
    "form",
    { class: "panel" },
    h("h2", {}, "Growth between two scans"),
    h("label", { class: "field wide" }, h("span", {}, "Earlier scan"), before),
    h("label", { class: "field wide" }, h("span", {}, "Later scan"), after),
    h("button", { class: "primary", type: "submit" }, "Show growth"),
  );
  return {
    element,
    /** @param {any[]} jobs */
    offer(jobs) {
      known = jobs;
      for (const select of [before, after]) {
        const value = select.value;
        select.replaceChildren(...jobs.map((job) => h("option", { value: job.id }, jobTitle(job))));
        if (jobs.some(({ id }) => id === value)) select.value = value;
      }
      if (jobs.length > 1 && before.value === after.value) [before.value, after.value] = [jobs[1].id, jobs[0].id];
      element.querySelector("button").disabled = !jobs.length;
    },
    values: () => [before, after].map(({ value }) => known.find(({ id }) => id === value)),
  };
}

/** @param {HTMLElement} board @param {any[]} jobs  the earlier and the later */
async function showGrowth(board, jobs) {
  const [before, after] = await Promise.all(jobs.map(({ id, input }) => openCase(`/jobs/${id}`, input)));
  const measure = before.result?.measures.find(({ title }) => /volume/i.test(title))?.key ?? defaultMeasure(before);
  const growth = await change("/growth", { before: jobs[0].id, after: jobs[1].id, measure });
  const tiles = [createTile(`Earlier: ${before.input.name}`, before), createTile(`Later: ${after.input.name}`, after)];
  board.replaceChildren(
    h("div", { class: "tiles" }, ...tiles.map(({ element }) => element)),
    h(
      "section",
      { class: "panel growth" },
      h("h2", {}, "Probability of growth"),
      h(
        "div",
        { class: "facts" },
        ...growth.probability_above.map((/** @type {any} */ { threshold, probability }) =>
          h(
            "div",
            { class: "fact" },
            h("span", { class: "fact-name" }, threshold ? `More than ${percent(threshold)}` : "Any growth"),
            h("span", { class: "fact-value" }, percent(probability)),
          ),
        ),
      ),
      h("p", { class: "statement" }, capital(growth.statement)),
    ),
  );
}
