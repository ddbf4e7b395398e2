/** A job from its first event to its result.
 * @module
 */
import { ApiError, change, follow, getBytes, getJson } from "./api.js";
import { Case } from "./case.js";
import { decode } from "./decode.js";

/** @typedef {{update: () => void, progress: (state: {part: number, text: string}) => void, connection: (is: boolean) => void,
 *   end: (state: string, error: unknown) => void}} Listeners */

/** @param {any} model @returns {import("./case.js").Kind[]} */
export function classesOf(model) {
  return model.class_names.map((/** @type {string} */ name, /** @type {number} */ index) => ({
    index,
    name,
    color: model.palette?.[index],
  }));
}

/**
 * Fill a case with the samples of a job while they are drawn, then with its result.
 * @param {any} job
 * @param {Case} shown
 * @param {Listeners} on
 * @returns {() => void}  stops listening; the job goes on
 */
export function watch(job, shown, on) {
  const abort = new AbortController();
  const base = `/jobs/${job.id}`;
  const total = job.parameters?.samples ?? 0;
  /** @type {Map<number, Promise<void>>} */
  const arriving = new Map();

  const fetchSample = async (/** @type {any} */ { index, weight, offset }) => {
    const [grid] = await decode(await getBytes(`${base}/samples/${index}`, abort.signal));
    shown.add(Case.place(grid, offset), index, weight ?? 1);
    on.update();
  };
  const finish = async () => {
    await Promise.allSettled(arriving.values());
    await shown.loadResult(base, abort.signal);
    on.end("done", null);
  };
  const receive = (/** @type {string} */ type, /** @type {any} */ data) => {
    if (type === "connection") on.connection(data);
    else if (type === "progress")
      on.progress({ part: data.total ? data.done / data.total : 0, text: words(data, arriving.size, total) });
    else if (type === "sample" && !arriving.has(data.index)) {
      // A sample that cannot be fetched or placed now comes with the result.
      const isPlaced = !shown.isVolume || data.offset;
      arriving.set(data.index, isPlaced ? fetchSample(data).catch(() => {}) : Promise.resolve());
    } else if (type === "state") onState(data);
  };
  const onState = (/** @type {any} */ data) => {
    if (data.state === "queued")
      on.progress({ part: 0, text: data.position > 0 ? `Waiting, ${data.position} before this` : "Waiting" });
    else if (data.state === "running") on.progress({ part: 0, text: "Starting" });
    else if (data.state === "done") finish().catch((error) => abort.signal.aborted || on.end("failed", error));
    else
      on.end(
        data.state,
        data.state === "failed" ? new ApiError(data.error ?? { message: "The job failed." }, 0) : null,
      );
  };
  const stop = follow(job.id, receive);
  return () => {
    stop();
    abort.abort();
  };
}

/** Wait until a job is done. @param {any} job @param {Case} shown @returns {Promise<void>} */
export function finished(job, shown) {
  return new Promise((resolve, reject) =>
    watch(job, shown, {
      update: () => {},
      progress: () => {},
      connection: () => {},
      end: (state, error) => (state === "done" ? resolve() : reject(error ?? new Error(`The job was ${state}.`))),
    }),
  );
}

/** @param {any} data @param {number} drawn @param {number} total */
function words({ what, done, total: all }, drawn, total) {
  if (drawn && total) return `${Math.min(drawn, total)} of ${total} samples`;
  return what ? `${what[0].toUpperCase()}${what.slice(1)}` : `${done} of ${all}`;
}

/** Jobs, the newest first, each with its input in place of the input's id; and inputs that no job used yet. */
export async function listJobs() {
  const [all, inputs] = await Promise.all([getJson("/jobs"), getJson("/inputs")]);
  const byId = new Map(inputs.map((/** @type {any} */ input) => [input.id, input]));
  /** @type {any[]} */
  const jobs = all
    .filter((/** @type {any} */ job) => byId.has(job.input))
    .map((/** @type {any} */ job) => ({ ...job, input: byId.get(job.input) }));
  const used = new Set(all.map((/** @type {any} */ job) => job.input));
  /** @type {any[]} */
  const unused = inputs.filter((/** @type {any} */ { id }) => !used.has(id));
  return { jobs, unused };
}

/** @param {string} input @param {object} parameters @param {number[][] | null} points */
export function startJob(input, parameters, points) {
  return change("/jobs", { input, ...parameters, points });
}

/** The model of a job and the rater as whom it drew. @param {any} job */
export function drawnBy({ model, parameters }) {
  return parameters.rater ? `${model} as ${parameters.rater}` : model;
}

/** @param {string} id */
export function cancelJob(id) {
  return change(`/jobs/${id}/cancel`);
}
