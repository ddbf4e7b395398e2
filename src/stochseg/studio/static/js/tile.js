/** A canvas with its title and facts, several of which stand side by side.
 * @module
 */
import { capital, number, percent, plural } from "./analysis.js";
import { createStore, h } from "./dom.js";
import { Stage } from "./stage.js";
import { defaultMeasure } from "./workbench.js";

/** @typedef {import("./case.js").Case} Case */

/**
 * @param {string} title @param {Case} shown */
export function createTile(title, shown) {
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
      facts.replaceChildren(h("span", { class: "muted" }, plural(shown.drawn.indices.length, "sample")));
      return;
    }
    const measure = result.measures.find(({ key }) => key === defaultMeasure(shown));
    const lines = [
      result.drawn_as && ["Drawn as", result.drawn_as],
      result.hypotheses[0] && [capital(result.hypotheses[0].name), percent(result.hypotheses[0].probability)],
      measure && [measure.title, `${number(measure.median)} ${measure.unit}`],
      measure?.interval && [
        `${Math.round(100 * measure.level)}% interval`,
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
