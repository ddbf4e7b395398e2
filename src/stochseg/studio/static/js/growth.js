/** Growth: two results of one lesion side by side, and the probability that it grew.
 * @module
 */
import { capital, percent } from "./analysis.js";
import { change } from "./api.js";
import { Case, openCase } from "./case.js";
import { h } from "./dom.js";
import { drawnBy, finished, startJob } from "./jobs.js";
import { when } from "./setup.js";
import { createTile } from "./tile.js";
import { defaultMeasure } from "./workbench.js";

const NUMBER = 2; // of the phantom that is the example

/** @param {() => void} onExample */
export function createGrowth(onExample) {
  const after = h("select", { id: "growth-after" });
  const before = h("select", { id: "growth-before", onchange: () => pick() });
  /** @type {any[]} */
  let known = [];
  let isPicked = false; // by the user
  const pick = () => {
    isPicked = true;
    offerLater();
  };
  const chosen = (/** @type {any} */ { value }) => known.find(({ id }) => id === value);
  /** Only results of the same kind can be compared. */
  const offerLater = () => {
    const first = chosen(before);
    const fitting = known.filter((job) => first && isComparable(first, job));
    fill(after, fitting);
    button.disabled = !fitting.length;
  };
  const button = h("button", { class: "primary", type: "submit" }, "Show growth");
  const element = h(
    "form",
    { class: "panel" },
    h("h2", {}, "Growth between two scans"),
    h("label", { class: "field wide" }, h("span", {}, "Earlier scan"), before),
    h("label", { class: "field wide" }, h("span", {}, "Later scan"), after),
    button,
    h("button", { class: "link", type: "button", onclick: onExample }, "Try it with two phantom scans"),
  );
  return {
    element,
    /** @param {any[]} jobs  the newest first */
    offer(jobs) {
      known = jobs;
      fill(before, jobs);
      if (!isPicked) {
        const later = jobs.find((job, i) => jobs.slice(i + 1).some((other) => isComparable(other, job)));
        const earlier = later && jobs.slice(jobs.indexOf(later) + 1).find((other) => isComparable(other, later));
        if (earlier) before.value = earlier.id;
      }
      offerLater();
    },
    values: () => [chosen(before), chosen(after)],
  };
}

/** @param {any} select @param {any[]} jobs */
function fill(select, jobs) {
  const { value } = select;
  select.replaceChildren(...jobs.map((job) => h("option", { value: job.id }, jobTitle(job))));
  if (jobs.some(({ id }) => id === value)) select.value = value;
}

/** @param {any} job @param {any} other */
function isComparable(job, other) {
  return (
    job.id !== other.id && drawnBy(job) === drawnBy(other) && job.input.spatial_dims === other.input.spatial_dims
  );
}

/** @param {any} job */
export function jobTitle(job) {
  return `${job.input.name} · ${drawnBy(job)} · ${when(job.created)}`;
}

/** Draw samples of a phantom and of its later scan. @param {{examples: any[]}} offer @returns {Promise<any[]>} */
export async function drawExample(offer) {
  const later = offer.examples.find(({ later_scan_of: first }) => first);
  const names = [later.later_scan_of, later.name];
  return Promise.all(
    names.map(async (example) => {
      const input = await change("/inputs", { example, number: NUMBER });
      const job = await startJob(input.id, { model: later.model }, null);
      await finished(job, new Case(input, []));
      return { ...job, input };
    }),
  );
}

/** @param {HTMLElement} board @param {any[]} jobs  the earlier and the later */
export async function showGrowth(board, jobs) {
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
