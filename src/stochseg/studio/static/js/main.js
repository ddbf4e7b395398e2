/** Start of the page: tabs, light and dark, help.
 * @module
 */
import { getJson } from "./api.js";
import { createCompare } from "./compare.js";
import { byId, guarded } from "./dom.js";
import { createRuns } from "./runs.js";
import { createStudio } from "./studio.js";

const RETRY = 1000; // ms
const TABS = ["studio", "runs", "compare"];

/** @param {boolean} isConnected */
function showConnection(isConnected) {
  const status = byId("connection");
  status.hidden = isConnected;
  status.textContent = isConnected ? "" : "Connection lost. Trying again…";
}

function startTheme() {
  const button = byId("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const theme = localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-label", theme === "dark" ? "Use light colors" : "Use dark colors");
    button.title = button.getAttribute("aria-label");
  };
  button.addEventListener("click", () => {
    localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

/** @param {Record<string, () => void>} onShow */
function startTabs(onShow) {
  const buttons = TABS.map((name) => byId(`tab-${name}`));
  const show = (/** @type {string} */ wanted) => {
    const name = TABS.includes(wanted) ? wanted : TABS[0];
    TABS.forEach((other, i) => {
      byId(`panel-${other}`).hidden = other !== name;
      buttons[i].setAttribute("aria-selected", String(other === name));
      buttons[i].tabIndex = other === name ? 0 : -1;
    });
    onShow[name]?.();
  };
  buttons.forEach((button, i) => {
    button.addEventListener("click", () => show(TABS[i]));
    button.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      const next = (i + by + TABS.length) % TABS.length;
      show(TABS[next]);
      buttons[next].focus();
    });
  });
  return show;
}

function startHelp() {
  const dialog = byId("help");
  byId("help-open").addEventListener("click", () => dialog.showModal());
  byId("help-close").addEventListener("click", () => dialog.close());
  window.addEventListener("keydown", (event) => {
    if (event.key === "?" && !(/** @type {HTMLElement} */ (event.target).closest("input, select, textarea")))
      dialog.showModal();
  });
}

/** Models and examples; the server may still be loading the models. @returns {Promise<{models: any[], examples: any[]}>} */
async function fetchOffer() {
  for (;;) {
    try {
      const [models, examples] = await Promise.all([getJson("/models"), getJson("/examples")]);
      return { models, examples };
    } catch (error) {
      if (/** @type {any} */ (error).status !== 503) throw error;
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

async function start() {
  startTheme();
  startHelp();
  const offer = await fetchOffer();
  const studio = createStudio(offer, showConnection);
  const runs = createRuns();
  const compare = createCompare(offer, showConnection);
  const show = startTabs({ runs: runs.refresh, compare: compare.refresh });
  const [tab, job] = location.hash.slice(1).split("/");
  show(tab);
  if (tab === "studio" && job) await studio.openJob(job);
  document.documentElement.dataset.ready = "true";
}

guarded(start);
