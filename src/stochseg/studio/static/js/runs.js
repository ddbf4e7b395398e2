/** The second tab: finished runs and predictions.
 * @module
 */
import { change, getJson } from "./api.js";
import { Case, openCase } from "./case.js";
import { announce, byId, guarded, h } from "./dom.js";
import { watch } from "./jobs.js";
import { number, plural } from "./analysis.js";
import { createWorkbench } from "./workbench.js";

/** Scores of a case that are shown: how their keys start, and their names. */
const SCORES = [
  ["ged", "GED"],
  ["hm_iou", "HM-IoU"],
];

export function createRuns() {
  const list = byId("runs-list");
  const detail = byId("runs-detail");
  const benchRoot = byId("runs-bench");
  const bench = createWorkbench(benchRoot);
  let loads = 0;

  async function refresh() {
    const runs = await getJson("/runs");
    list.replaceChildren(h("h2", {}, "Runs and predictions"), ...(runs.length ? runs.map(row) : [blank()]));
  }

  function blank() {
    return h(
      "p",
      { class: "muted" },
      "No finished runs here yet. Start the studio with --runs and the folder of your runs.",
    );
  }

  /** @param {any} run */
  function row(run) {
    const button = h(
      "button",
      { type: "button", class: "run", onclick: () => guarded(() => choose(run, button)) },
      h("strong", {}, run.name),
      h("span", { class: "muted" }, [run.kind, run.model, run.data].filter(Boolean).join(" · ")),
      h("span", { class: "muted" }, plural(run.cases, "case")),
    );
    return button;
  }

  /** @param {any} run @param {HTMLElement} button */
  async function choose(run, button) {
    const ticket = ++loads;
    list
      .querySelectorAll(".run")
      .forEach((/** @type {HTMLElement} */ other) => other.setAttribute("aria-pressed", String(other === button)));
    benchRoot.hidden = true;
    const cases = run.cases ? await getJson(`/runs/${encodeURIComponent(run.id)}/cases?sort=ged`) : [];
    if (ticket !== loads) return;
    detail.replaceChildren(metrics(run), table(run, cases));
    detail.hidden = false;
  }

  /** @param {any} run */
  function metrics(run) {
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, run.name),
      run.metrics.length
        ? h(
            "div",
            { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Metrics" },
            h(
              "table",
              {},
              h("caption", { class: "visually-hidden" }, "Metrics"),
              h("thead", {}, h("tr", {}, ...["Metric", "Value", ""].map((name) => h("th", { scope: "col" }, name)))),
              h(
                "tbody",
                {},
                ...run.metrics.map((/** @type {any} */ m) =>
                  h(
                    "tr",
                    {},
                    h("th", { scope: "row" }, m.title),
                    h("td", { class: "figure" }, m.text ?? number(m.value)),
                    h("td", { class: "muted" }, m.better ? `${m.better} is better` : ""),
                  ),
                ),
              ),
            ),
          )
        : h("p", { class: "muted" }, "No metrics: there were no raters to compare with."),
    );
  }

  /** @param {any} run @param {any[]} cases */
  function table(run, cases) {
    const all = [...new Set(cases.flatMap(({ scores }) => Object.keys(scores)))];
    const keys = SCORES.flatMap(([start]) => all.find((key) => key.startsWith(start)) ?? []);
    if (!cases.length) return h("p", { class: "muted panel" }, "No samples are stored for this run.");
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, keys.length ? "Cases, the worst first" : "Cases"),
      h(
        "div",
        { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Cases" },
        h(
          "table",
          { class: "cases" },
          h("caption", { class: "visually-hidden" }, "Cases"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, "Case"),
              ...keys.map((key) => h("th", { scope: "col", class: "figure" }, heading(key))),
            ),
          ),
          h(
            "tbody",
            {},
            ...cases.map((one) =>
              h(
                "tr",
                {},
                h(
                  "th",
                  { scope: "row" },
                  h(
                    "button",
                    {
                      type: "button",
                      class: "link",
                      onclick: (/** @type {Event} */ event) => guarded(() => open(run, one, event)),
                    },
                    one.name,
                  ),
                ),
                ...keys.map((key) => h("td", { class: "figure" }, number(one.scores[key]))),
              ),
            ),
          ),
        ),
      ),
    );
  }

  /** @param {any} run @param {any} one @param {Event} event */
  async function open(run, one, event) {
    const ticket = ++loads;
    detail
      .querySelectorAll("tr.chosen")
      .forEach((/** @type {HTMLElement} */ other) => other.classList.remove("chosen"));
    /** @type {HTMLElement} */ (event.target).closest("tr")?.classList.add("chosen");
    const job = await change(`/runs/${encodeURIComponent(run.id)}/cases/${encodeURIComponent(one.id)}/open`);
    const input = await getJson(`/inputs/${job.input}`);
    if (job.state !== "done") await finished(job, new Case(input, []));
    const shown = await openCase(`/jobs/${job.id}`, input);
    if (ticket !== loads) return;
    benchRoot.hidden = false;
    bench.open(shown);
    bench.store.set({ view: shown.foreground.length === 1 ? "readings" : "contours" });
  }

  return { refresh: () => guarded(refresh) };
}

/** Wait for a job: images of an evaluation are drawn again. @param {any} job @param {Case} shown @returns {Promise<void>} */
function finished(job, shown) {
  announce("Drawing the samples again");
  return new Promise((resolve, reject) =>
    watch(job, shown, {
      update: () => {},
      progress: () => {},
      connection: () => {},
      end: (state, error) => (state === "done" ? resolve() : reject(error ?? new Error(`The job was ${state}.`))),
    }),
  );
}

/** @param {string} key */
function heading(key) {
  return SCORES.find(([start]) => key.startsWith(start))?.[1];
}
