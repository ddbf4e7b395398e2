/** The second tab: finished runs and predictions.
 * @module
 */
import { change, getJson } from "./api.js";
import { Case, openCase } from "./case.js";
import { announce, byId, guarded, h } from "./dom.js";
import { finished } from "./jobs.js";
import { capital, number, plural } from "./analysis.js";
import { createWorkbench } from "./workbench.js";

/** Scores of a case that are shown: how their keys start, and their names. */
const SCORES = [
  ["ged", "GED"],
  ["hm_iou", "HM-IoU"],
];

const FIRST = 6; // metrics that are shown at once
const ARROWS = /** @type {Record<string, string>} */ ({ lower: "↓", higher: "↑" });

export function createRuns() {
  const list = byId("runs-list");
  const detail = byId("runs-detail");
  const hint = byId("runs-hint");
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
    hint.hidden = false;
    hint.textContent = "Choose a case to see its samples.";
    const cases = run.cases ? await getJson(`/runs/${encodeURIComponent(run.id)}/cases?sort=ged`) : [];
    if (ticket !== loads) return;
    detail.replaceChildren(metrics(run), table(run, cases));
    detail.hidden = false;
  }

  /** @param {any} run */
  function metrics(run) {
    const [first, rest] = [run.metrics.slice(0, FIRST), run.metrics.slice(FIRST)];
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, run.name),
      run.metrics.length
        ? metricTable("Metrics", first)
        : h("p", { class: "muted" }, "No metrics: there were no raters to compare with."),
      rest.length > 0 &&
        h("details", {}, h("summary", {}, `${rest.length} more metrics`), metricTable("More metrics", rest)),
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
                ...keys.map((key) => h("td", { class: "figure" }, score(one.scores[key]))),
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
    if (job.state !== "done") {
      announce("Drawing the samples again");
      await finished(job, new Case(input, []));
    }
    const shown = await openCase(`/jobs/${job.id}`, input);
    if (ticket !== loads) return;
    benchRoot.hidden = false;
    hint.hidden = true;
    bench.open(shown);
    bench.store.set({ view: shown.foreground.length === 1 ? "readings" : "contours" });
    bench.reveal();
  }

  return { refresh: () => guarded(refresh) };
}

/** @param {string} name @param {any[]} metrics */
function metricTable(name, metrics) {
  return h(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": name },
    h(
      "table",
      {},
      h("caption", { class: "visually-hidden" }, name),
      h(
        "thead",
        { class: "visually-hidden" },
        h("tr", {}, ...["Metric", "Value", "Better"].map((title) => h("th", { scope: "col" }, title))),
      ),
      h(
        "tbody",
        {},
        ...metrics.map((/** @type {any} */ m) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, capital(m.title)),
            h("td", { class: "figure" }, m.text ?? number(m.value)),
            h(
              "td",
              { class: "arrow muted", title: m.better && `${m.better} is better` },
              m.better && h("span", { "aria-hidden": "true" }, ARROWS[m.better]),
              m.better && h("span", { class: "visually-hidden" }, `${m.better} is better`),
            ),
          ),
        ),
      ),
    ),
  );
}

/** @param {number | null | undefined} value */
function score(value) {
  return value == null ? "–" : value.toFixed(3);
}

/** @param {string} key */
function heading(key) {
  return SCORES.find(([start]) => key.startsWith(start))?.[1];
}
