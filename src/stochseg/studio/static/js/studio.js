/** The first tab: one image, one model, its readings.
 * @module
 */
import { getJson } from "./api.js";
import { Case } from "./case.js";
import { announce, byId, clearErrors, guarded, h, showError } from "./dom.js";
import { cancelJob, classesOf, startJob, watch } from "./jobs.js";
import { createSetup } from "./setup.js";
import { createWelcome } from "./welcome.js";
import { createWorkbench, defaultMeasure } from "./workbench.js";

/** @typedef {import("./planes.js").Triple} Triple */

/** Examples that stand alone; later scans of others are for the tab of comparisons. @param {{examples: any[]}} offer */
function starts(offer) {
  return offer.examples.filter(({ later_scan_of: first }) => !first);
}

/** @param {{models: any[], examples: any[]}} offer @param {(is: boolean) => void} onConnection */
export function createStudio(offer, onConnection) {
  /** @type {{case: Case | null, job: any, points: number[][] | null, stop: () => void, isArmed: boolean, loads: number}} */
  const now = { case: null, job: null, points: null, stop: () => {}, isArmed: false, loads: 0 };
  const bench = createWorkbench(byId("studio-bench"), { click: (voxel) => pick(voxel) });
  const welcome = createWelcome(starts(offer), (example) => setup.source.pick(example));
  const setup = createSetup(byId("setup"), {
    input: (load) => guarded(() => takeInput(load)),
    run: () => guarded(() => run(null)),
    cancel: () => guarded(() => cancel()),
    model: () => refresh(),
    job: (id) => guarded(() => openJob(id)),
  });
  setup.source.examples(starts(offer));
  setup.parameters.offer(offer.models, null);
  setup.recent.refresh();
  refresh();

  function needsPoint() {
    return !!(now.case?.isVolume && setup.parameters.current()?.takes_points);
  }

  /** Say what can be done next, on the button and over the canvas. */
  function refresh() {
    const isPointed = needsPoint();
    now.isArmed = isPointed && !now.job && !now.case?.samples.length;
    const label = isPointed ? (now.isArmed ? "Segment the whole volume" : "Segment another lesion") : "Draw samples";
    setup.ready(!!now.case?.image && !!setup.parameters.current() && !now.job, label);
    hint();
  }

  function hint() {
    const { overlay, store } = bench;
    overlay.parentElement?.classList.toggle("armed", now.isArmed);
    if (!now.case) overlay.replaceChildren(welcome);
    else if (!now.case.image) overlay.replaceChildren(h("p", { class: "hint" }, "Reading the image…"));
    else if (now.isArmed)
      overlay.replaceChildren(
        h("p", { class: "hint" }, "Click a lesion to segment it · wheel: slices · Ctrl + wheel: zoom"),
      );
    else if (now.job && !store.values.shown?.samples.length)
      overlay.replaceChildren(h("p", { class: "hint" }, "Drawing the first sample…"));
    else overlay.replaceChildren();
  }

  /** @param {() => Promise<any>} load */
  async function takeInput(load) {
    const ticket = ++now.loads;
    clearErrors();
    await leave();
    announce("Reading the image");
    const input = await load();
    if (ticket !== now.loads) return;
    const example = offer.examples.find(({ title }) => input.name.startsWith(title));
    setup.parameters.offer(offer.models, input, example?.model);
    await showInput(new Case(input, classesOf(setup.parameters.current() ?? { class_names: [] })), ticket);
    if (ticket === now.loads && now.case?.image && !needsPoint() && setup.parameters.current()) await run(null);
  }

  /** @param {Case} shown @param {number} ticket */
  async function showInput(shown, ticket) {
    now.case = shown;
    setup.source.show(shown.input);
    refresh();
    await Promise.all([shown.loadImage(), shown.loadRaters()]);
    if (ticket !== now.loads) return;
    bench.open(shown);
    bench.reveal();
    refresh();
  }

  /** @param {Triple} voxel */
  function pick([z, y, x]) {
    if (!now.isArmed) return false;
    bench.store.set({ cursor: [z, y, x], cross: true });
    guarded(() => run([[x, y, z]]));
    return true;
  }

  /** @param {number[][] | null} points @param {object} [permission] */
  async function run(points, permission = {}) {
    if (!now.case?.image) return;
    if (needsPoint() && now.case.samples.length) return again();
    clearErrors();
    now.points = points;
    const job = await startJob(now.case.input.id, { ...setup.parameters.values(), ...permission }, points);
    location.hash = `#studio/${job.id}`;
    follow(job, now.case.renewed(classesOf(setup.parameters.current())));
  }

  /** Forget the samples, to click another lesion. */
  function again() {
    if (!now.case) return;
    now.case = now.case.renewed(now.case.classes);
    bench.store.set({ shown: now.case, expected: 0, reading: null, range: null, focus: null });
    bench.stages.forEach((stage) => stage.reset());
    refresh();
  }

  /** @param {any} job @param {Case} shown */
  function follow(job, shown) {
    now.stop();
    now.job = job;
    now.case = shown;
    bench.store.set({ shown, expected: job.parameters.samples, sample: 0, reading: null, range: null, measure: null });
    setup.busy({ part: 0, text: "Waiting" });
    bench.reveal();
    refresh();
    now.stop = watch(job, shown, {
      update: () => {
        if (shown.drawn.indices.length === 1 && shown.isVolume) bench.open(shown); // goes to the lesion
        bench.store.set({ revision: bench.store.values.revision + 1, expected: job.parameters.samples });
        hint();
      },
      progress: (state) => setup.busy(state),
      connection: (is) => onConnection(is),
      end: (state, error) => end(shown, state, error),
    });
  }

  /** @param {Case} shown @param {string} state @param {unknown} error */
  function end(shown, state, error) {
    now.job = null;
    setup.busy(null);
    if (shown.isVolume && !bench.store.values.focus && state === "done") bench.open(shown);
    bench.store.set({ expected: 0, revision: bench.store.values.revision + 1, measure: defaultMeasure(shown) });
    if (state === "done") {
      const first = shown.result?.hypotheses[0];
      if (bench.store.values.view === "contours" && shown.foreground.length === 1)
        bench.store.set({ view: "readings" });
      announce(first ? `Done. Most likely: ${first.name}, ${Math.round(100 * first.probability)} percent` : "Done");
    } else if (state === "cancelled") announce("Cancelled");
    if (error) showFailure(error);
    refresh();
    setup.recent.refresh();
  }

  /** An image unlike those of the training is refused; the user may know better. @param {any} error */
  function showFailure(error) {
    const [problem, way] = error.message.split(". If that is right, ");
    if (!way || !error.detail) return showError(error);
    const points = now.points;
    const insist = () => guarded(() => run(points, { allow_unusual_input: true }));
    return showError(
      { detail: { ...error.detail, message: `${problem}.` } },
      { label: "Segment it anyway", run: insist },
    );
  }

  async function cancel() {
    if (now.job) await cancelJob(now.job.id);
  }

  /** Give up what runs before something else is opened. */
  async function leave() {
    const { job } = now;
    now.stop();
    now.job = null;
    setup.busy(null);
    if (job) await cancelJob(job.id).catch(() => {});
  }

  /** @param {string} id */
  async function openJob(id) {
    const ticket = ++now.loads;
    clearErrors();
    if (now.job?.id === id) return;
    now.stop();
    now.job = null;
    const job = await getJson(`/jobs/${id}`);
    const input = await getJson(`/inputs/${job.input}`);
    setup.parameters.offer(offer.models, input, job.model);
    setup.parameters.drawAs(job.parameters.rater ?? null);
    const model = offer.models.find(({ name }) => name === job.model);
    await showInput(new Case(input, classesOf(model ?? { class_names: [] })), ticket);
    if (ticket !== now.loads || !now.case) return;
    location.hash = `#studio/${id}`;
    if (job.state === "done") {
      const shown = await now.case.loadResult(`/jobs/${id}`);
      if (ticket !== now.loads) return;
      setup.busy(null);
      bench.open(shown);
      end(shown, "done", null);
    } else if (job.state === "queued" || job.state === "running") follow(job, now.case.renewed(now.case.classes));
    else setup.busy(null);
  }

  return { openJob: (/** @type {string} */ id) => guarded(() => openJob(id)), bench };
}
