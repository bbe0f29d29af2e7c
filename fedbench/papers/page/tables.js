"use strict";
// Tables: unpacked when first opened, sorted by a heading, walked through by the keyboard (one stop of the tab key for
// each table, arrow keys within).
const Tables = (() => {
  const tables = new Map(); // folder -> what the script knows of it, once it is opened
  const unpacked = new Map();

  async function inflate(id) {
    const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function once(id, use) {
    if (!unpacked.has(id)) unpacked.set(id, inflate(id).then(use));
    return unpacked.get(id);
  }

  const section = (folder) => $(`table-${folder}`);

  // What is known of a table, which is drawn first if it is not yet; null if there is no such table.
  async function open(folder) {
    const own = section(folder);
    if (!own) return null;
    for (let part = own; part; part = part.parentElement.closest("details")) part.open = true;
    return once(`${folder}-drawn`, ({ html, content }) => {
      own.querySelector(".content").innerHTML = html; // of the page's own template, in which all labels are escaped
      tables.set(folder, content);
      return content;
    });
  }

  // Curves, matrices and clients of a table.
  const behind = (table) => once(`${table.id}-behind`, (found) => found);

  const cellOf = (target) => target.closest("td button[data-cell]");
  const of = (part) => tables.get(part.closest("table").dataset.table);

  function heading(table, key) {
    const [row, column, metric] = key.split("-").map(Number);
    return `${table.rows[row].label}: ${table.columns[column].label}, ${table.metrics[metric].label}`;
  }

  // ---- sorting: best first, then last first, then as it was

  const NEXT = { none: "descending", descending: "ascending", ascending: "none" };

  function sort(button) {
    const table = button.closest("table");
    const head = button.closest("th");
    const order = NEXT[head.ariaSort];
    for (const each of all("th[aria-sort]", table)) each.ariaSort = "none";
    head.ariaSort = order;
    const rows = all("tbody tr", table);
    rows.forEach((row, i) => { row.dataset.place = row.dataset.place || i; });
    const sign = order === "descending" ? -1 : 1;
    rows.sort((a, b) => (order === "none" ? 0 : compared(a, b, Number(button.dataset.sort), sign)) || a.dataset.place - b.dataset.place);
    table.tBodies[0].append(...rows);
    button.focus();
  }

  // Names by alphabet, numbers by size; cells without a value come last either way.
  function compared(a, b, column, sign) {
    const [one, other] = [a, b].map((row) => row.children[column]);
    if (one.tagName === "TH") return -sign * one.innerText.localeCompare(other.innerText);
    const [x, y] = [one, other].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : NaN));
    return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || 0;
  }

  // ---- keyboard

  const PARTS = "td button, [data-pick], .sort";
  const partOf = (event) => { const part = event.target.closest(PARTS); return part && part.closest("[role=grid]") ? part : null; };

  const lines = (table) => [all(".sort", table), ...all("tbody tr", table).map((row) => all("[data-pick], td button", row))];

  function move(event, part) {
    const grid = lines(part.closest("table"));
    const row = grid.findIndex((line) => line.includes(part));
    const column = grid[row].indexOf(part);
    const last = grid[row].length - 1;
    const [toRow, toColumn] = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [event.ctrlKey ? 1 : row, 0], End: [event.ctrlKey ? grid.length - 1 : row, last],
    }[event.key] || [];
    if (toRow === undefined) return;
    event.preventDefault();
    const target = (grid[toRow] || [])[toColumn];
    if (target) focusOn(target);
  }

  function focusOn(part) {
    for (const each of all(PARTS, part.closest("table"))) each.tabIndex = -1;
    part.tabIndex = 0;
    part.focus();
    const row = part.closest("tr").querySelector("th");
    const hidden = row.getBoundingClientRect().right - part.getBoundingClientRect().left; // behind the column that stays
    if (part.closest("td") && hidden > 0) part.closest(".scroll").scrollLeft -= hidden;
  }

  $("papers").addEventListener("toggle", (event) => { // which does not bubble
    if (event.target.open && event.target.dataset.folder) open(event.target.dataset.folder);
  }, true);
  $("papers").addEventListener("click", (event) => { if (event.target.closest(".sort")) sort(event.target.closest(".sort")); });
  $("papers").addEventListener("keydown", (event) => { if (partOf(event)) move(event, partOf(event)); });

  return { open, behind, section, cellOf, of, heading, focusOn };
})();
