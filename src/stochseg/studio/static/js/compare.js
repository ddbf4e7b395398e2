/** The third tab: models on one image, or two scans of one lesion, side by side.
 * @module
 */
import { change } from "./api.js";
import { Case } from "./case.js";
import { byId, guarded, h } from "./dom.js";
import { createGrowth, drawExample, showGrowth } from "./growth.js";
import { classesOf, listJobs, startJob, watch } from "./jobs.js";
import { fittingModels, misfit } from "./setup.js";
import { createTile } from "./tile.js";

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
  const say = (/** @type {string} */ text) => board.replaceChildren(h("p", { class: "empty", role: "status" }, text));
  say("Samples of one image by several models, or two scans of one lesion, appear here side by side.");
  const models = createModels(offer);
  const growth = createGrowth(() => {
    clear();
    say("Drawing samples of both scans…");
    guarded(async () => showGrowth(board, await drawExample(offer)));
  });
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

/** @param {{models: any[], examples: any[]}} offer */
function createModels(offer) {
  const source = h("select", { id: "compare-source" });
  const boxes = h("div", { class: "checks", role: "group", "aria-label": "Models" });
  /** @type {any[]} */
  let options = [];
  const fill = () => {
    const input = options[Number(source.value)];
    const fitting = fittingModels(offer.models, input);
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
        ...offer.models
          .filter((model) => misfit(model, input))
          .map((model) =>
            h(
              "label",
              { class: "check muted" },
              h("input", { type: "checkbox", value: model.name, disabled: true }),
              `${model.title}: ${misfit(model, input)}`,
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

