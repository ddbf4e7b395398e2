/** Requests to the server, and events that survive lost connections and a restarted server.
 * @module
 */

const ROOT = "/api/v1";

/** A refusal by the server, or none at all, in words for the person in front of the page. */
export class ApiError extends Error {
  /** @param {{message: string, expected?: string, got?: string, remedy?: string}} detail @param {number} status */
  constructor(detail, status) {
    super(detail.message);
    this.name = "ApiError";
    this.detail = detail;
    this.status = status;
  }
}

/** @param {string} path */
export function url(path) {
  return path.startsWith("/") && !path.startsWith(ROOT) ? ROOT + path : path;
}

/** @param {Response} response */
async function refusal(response) {
  const wait = response.headers.get("Retry-After");
  const later = wait ? `Try again in ${wait} seconds.` : undefined;
  try {
    const { error } = await response.json();
    return new ApiError({ ...error, remedy: error.remedy ?? later }, response.status);
  } catch {
    const remedy = later ?? "Look at the output of the command stochseg studio.";
    return new ApiError({ message: `The server answered ${response.status}.`, remedy }, response.status);
  }
}

/** @param {string} path @param {RequestInit} [init] */
async function send(path, init = {}) {
  let response;
  try {
    response = await fetch(url(path), { credentials: "same-origin", ...init });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new ApiError({ message: "The server does not answer.", remedy: "Is stochseg studio still running?" }, 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function getJson(path, signal) {
  return (await send(path, { signal })).json();
}

/** @param {string} path @param {AbortSignal} [signal] */
export async function getBytes(path, signal) {
  return (await send(path, { signal })).arrayBuffer();
}

/**
 * @param {string} path
 * @param {object | FormData} [body]
 * @param {string} [method]
 * @returns {Promise<any>}
 */
export async function change(path, body, method = "POST") {
  const headers = /** @type {Record<string, string>} */ ({ "X-Stochseg": "1" });
  const isForm = body instanceof FormData;
  if (body && !isForm) headers["Content-Type"] = "application/json";
  const response = await send(path, { method, headers, body: isForm ? body : body && JSON.stringify(body) });
  return response.status === 204 ? null : response.json();
}

const FINAL = ["done", "failed", "cancelled"];
const EVENTS = ["state", "progress", "sample", "result"];

/**
 * Follow the events of a job until it ends. A lost connection is opened again after the last event that came.
 * @param {string} id
 * @param {(type: string, data: any) => void} on  also told of "connection" with true or false
 * @returns {() => void}  stops
 */
export function follow(id, on) {
  let last = "";
  let wait = 250;
  let timer = 0;
  /** @type {EventSource | undefined} */
  let source;
  const stop = () => {
    window.clearTimeout(timer);
    source?.close();
  };
  const open = () => {
    source = new EventSource(url(`/jobs/${id}/events${last ? `?after=${last}` : ""}`));
    source.onopen = () => {
      wait = 250;
      on("connection", true);
    };
    source.onerror = () => {
      // The browser's own retries end for good when a proxy answers 502 in place of a server that restarts.
      source?.close();
      on("connection", false);
      timer = window.setTimeout(open, wait);
      wait = Math.min(4000, 2 * wait);
    };
    for (const type of EVENTS) {
      source.addEventListener(type, (event) => {
        last = event.lastEventId || last;
        const data = JSON.parse(event.data || "{}");
        if (type === "state" && FINAL.includes(data.state)) stop();
        on(type, data);
      });
    }
  };
  open();
  return stop;
}
