/** Where images come from: drops, files, folders and examples.
 * @module
 */
import { change } from "./api.js";
import { guarded, h } from "./dom.js";

/** @typedef {{files: File[], name: string}} Chosen  name: of their folder, "" without one */

/** Files of a drop, also those in folders. @param {DataTransfer} data @returns {Promise<Chosen>} */
export async function droppedFiles(data) {
  const entries = [...data.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry != null);
  const folders = entries.filter((entry) => entry.isDirectory);
  if (!folders.length) return { files: [...data.files], name: "" };
  const files = (await Promise.all(entries.map(walk))).flat();
  return { files, name: entries.length === 1 ? folders[0].name : "" };
}

/** @param {any} entry @returns {Promise<File[]>} */
async function walk(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  /** @type {File[]} */
  const files = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return files;
    for (const child of batch) files.push(...(await walk(child)));
  }
}

/** @param {Chosen} chosen @param {File[]} raters @param {string} [spacing]  millimeters per pixel */
export function upload({ files, name }, raters, spacing = "") {
  const form = new FormData();
  if (name) form.append("name", name);
  if (spacing) form.append("spacing", spacing);
  files.forEach((file) => form.append("files", file, file.name));
  raters.forEach((file) => form.append("raters", file, file.name));
  return change("/inputs", form);
}

/** @param {any} input */
export function describeInput(input) {
  const size = [...input.shape].reverse().join(" × ");
  const spacing = input.spacing
    ? ` · ${[...input.spacing]
        .reverse()
        .map((/** @type {number} */ mm) => Number(mm.toPrecision(3)))
        .join(" × ")} mm`
    : "";
  return `${size}${spacing}`;
}

/** @param {(load: () => Promise<any>) => void} onInput */
export function createSource(onInput) {
  const files = h("input", {
    type: "file",
    multiple: true,
    class: "visually-hidden",
    "aria-label": "Image files",
    tabindex: -1,
    onchange: () => choose({ files: [...files.files], name: "" }),
  });
  const folder = h("input", {
    type: "file",
    class: "visually-hidden",
    "aria-label": "DICOM folder",
    webkitdirectory: true,
    tabindex: -1,
    onchange: () =>
      choose({ files: [...folder.files], name: folder.files[0]?.webkitRelativePath.split("/")[0] ?? "" }),
  });
  const raters = h("input", {
    type: "file",
    multiple: true,
    class: "visually-hidden",
    "aria-label": "Label maps of raters",
    tabindex: -1,
    onchange: () => renew(),
  });
  const spacing = h("input", {
    type: "number",
    min: 0.001,
    step: "any",
    inputmode: "decimal",
    placeholder: "unknown",
    onchange: () => renew(),
  });
  const spacingField = h(
    "label",
    { class: "field inline", hidden: true },
    h("span", {}, "Millimeters per pixel"),
    spacing,
  );
  const renew = () => {
    const [images, maps] = [last, [...raters.files]];
    if (images) onInput(() => upload(images, maps, spacing.value));
  };
  /** @type {Chosen | null} */
  let last = null; // what was dropped or chosen; null for an example
  const choose = (/** @type {Chosen} */ chosen) => {
    if (!chosen.files.length) return;
    last = chosen;
    spacing.value = raters.value = "";
    onInput(() => upload(chosen, []));
    files.value = folder.value = "";
  };
  const current = h("div", { class: "current", hidden: true });
  const addRaters = h(
    "button",
    { type: "button", class: "link", hidden: true, onclick: () => raters.click() },
    "Add raters’ label maps",
  );
  const zone = h(
    "div",
    { class: "drop" },
    h("p", { class: "drop-title" }, "Drop an image or a scan"),
    h("p", { class: "muted" }, "PNG, JPEG, TIFF, NIfTI, NRRD, or a DICOM folder"),
    h(
      "div",
      { class: "drop-buttons" },
      h("button", { type: "button", class: "secondary", onclick: () => files.click() }, "Choose files"),
      h("button", { type: "button", class: "secondary", onclick: () => folder.click() }, "Folder"),
    ),
    files,
    folder,
    raters,
  );
  listenDrop(zone, choose);
  const examples = h("div", { class: "examples" });
  /** @type {Map<string, number>} */
  const made = new Map();
  const pick = (/** @type {any} */ { name }) => {
    last = null;
    const number = made.get(name) ?? 0; // another one each time
    made.set(name, number + 1);
    onInput(() => change("/inputs", { example: name, number }));
  };
  return {
    pick,
    element: h(
      "section",
      { class: "panel", "aria-label": "Image" },
      h("h2", {}, "Image"),
      current,
      spacingField,
      addRaters,
      zone,
      examples,
    ),
    /** @param {any[]} list */
    examples(list) {
      examples.replaceChildren(
        h("p", { class: "label" }, "Or try an example"),
        ...list.map((example) =>
          h(
            "button",
            {
              type: "button",
              class: "chip",
              onclick: () => pick(example),
            },
            example.title,
          ),
        ),
      );
    },
    /** @param {any} input */
    show(input) {
      current.hidden = false;
      zone.classList.add("small");
      addRaters.hidden = !last || input.rater_names.length > 0;
      spacingField.hidden = !last || input.spatial_dims === 3 || (input.spacing != null && !spacing.value);
      current.replaceChildren(
        h("strong", { title: input.name }, input.name),
        h("span", { class: "muted" }, describeInput(input)),
      );
    },
  };
}

/** Accept drops on the whole page. @param {HTMLElement} zone @param {(chosen: Chosen) => void} choose */
function listenDrop(zone, choose) {
  const over = (/** @type {boolean} */ isOver) => {
    zone.classList.toggle("over", isOver);
    document.body.classList.toggle("dropping", isOver);
  };
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) over(false);
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer)
      guarded(async () => choose(await droppedFiles(/** @type {DataTransfer} */ (event.dataTransfer))));
  });
}
