"use strict";
// Tables: filters, sorting, and the keyboard (one stop of the tab key for each table, arrow keys within).
const Grid = (() => {
  const form = $("filters");

  // ---- filters

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    let shownTables = 0, shownCells = 0;
    for (const section of all("#tables > section")) {
      const cells = wanted.paper && section.dataset.paper !== wanted.paper ? 0 : narrow(section, wanted);
      section.hidden = cells === 0;
      document.querySelector(`[data-card="${CSS.escape(section.dataset.folder)}"]`).hidden = section.hidden;
      shownTables += cells > 0;
      shownCells += cells;
    }
    $("shown").textContent = `${shownTables} of ${tables.size} tables, ${shownCells} cells`;
    $("none").hidden = shownTables > 0;
  }

  function keep() {
    Address.keep({ filters: [...new FormData(form)].filter(([, value]) => value) });
    filter();
  }

  // Hides the columns and rows of a table that do not match; returns how many cells remain that do.
  function narrow(section, wanted) {
    const columns = new Set();
    for (const head of all("th[data-datasets]", section)) {
      if (!wanted.dataset || head.dataset.datasets.split(" ").includes(wanted.dataset)) columns.add(head.dataset.column);
    }
    for (const each of all("[data-column]", section)) each.hidden = !columns.has(each.dataset.column);
    const width = tables.get(section.dataset.folder).metrics.length;
    for (const head of all("[data-below]", section)) {
      const left = head.dataset.below.split(" ").filter((column) => columns.has(column)).length;
      head.hidden = left === 0;
      if (left) head.colSpan = left * width;
    }
    let count = 0;
    for (const row of all("tbody tr", section)) {
      const cells = all("td", row).filter((cell) => !cell.hidden);
      const matching = cells.filter((cell) => !wanted.verdict || cell.dataset.kind === wanted.verdict);
      for (const cell of cells) cell.classList.toggle("other", !matching.includes(cell));
      row.hidden = (wanted.method && row.dataset.method !== wanted.method) || !matching.length;
      count += row.hidden ? 0 : matching.length;
    }
    enter(section);
    return count;
  }

  function restore(filters) {
    form.reset();
    for (const [name, value] of filters) {
      const select = form.elements.namedItem(name);
      if (select && all("option", select).some((option) => option.value === value)) select.value = value;
    }
    keep();
  }

  // ---- sorting: best first, then last first, then as it was

  const NEXT = { none: "descending", descending: "ascending", ascending: "none" };

  function sort(button) {
    const table = button.closest("table");
    const head = button.closest("th");
    const order = NEXT[head.ariaSort];
    for (const each of all("th[aria-sort]", table)) each.ariaSort = "none";
    head.ariaSort = order;
    const body = table.tBodies[0];
    const rows = all("tr", body);
    rows.forEach((row, i) => { row.dataset.place = row.dataset.place || i; });
    const sign = order === "descending" ? -1 : 1;
    rows.sort((a, b) => (order === "none" ? 0 : compared(a, b, Number(button.dataset.sort), sign)) || a.dataset.place - b.dataset.place);
    body.append(...rows);
    button.focus();
  }

  // Numbers by size, text by alphabet; cells without a value come last either way.
  function compared(a, b, column, sign) {
    const [one, other] = [a, b].map((row) => row.children[column]);
    if (one.tagName === "TH" || (!("value" in one.dataset) && !("value" in other.dataset) && !one.dataset.kind)) {
      return -sign * one.innerText.localeCompare(other.innerText);
    }
    const [x, y] = [one, other].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : NaN));
    return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || 0;
  }

  // ---- keyboard

  const PARTS = "td button, [data-pick], .sort";
  const partOf = (event) => { const part = event.target.closest(PARTS); return part && part.closest("[role=grid]") ? part : null; };

  const lines = (section) => [
    all(".sort", section).filter((button) => !button.closest("th").hidden),
    ...all("tbody tr:not([hidden])", section).map((row) => all("[data-pick], td:not([hidden]) button", row)),
  ];

  function enter(section) {
    const cells = lines(section).flat();
    const current = cells.find((part) => part.tabIndex === 0);
    for (const part of all(PARTS, section)) part.tabIndex = -1;
    const first = cells.find((part) => part.matches("td button"));
    if (current || first) (current || first).tabIndex = 0;
  }

  function move(event, part) {
    const grid = lines(part.closest("section"));
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
    for (const each of all(PARTS, part.closest("section"))) each.tabIndex = -1;
    part.tabIndex = 0;
    part.focus();
    const row = part.closest("tr").querySelector("th");
    const hidden = row.getBoundingClientRect().right - part.getBoundingClientRect().left; // behind the column that stays
    if (part.closest("td") && hidden > 0) part.closest(".scroll").scrollLeft -= hidden;
  }

  form.addEventListener("change", keep);
  // Not the form's own "reset" event: it comes before the fields change.
  $("show-all").addEventListener("click", () => { form.reset(); keep(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => { if (event.target.closest(".sort")) sort(event.target.closest(".sort")); });
  $("tables").addEventListener("keydown", (event) => { if (partOf(event)) move(event, partOf(event)); });

  return { restore, focusOn };
})();
