"use strict";
// Filters, keyboard, the hover card and the dialog of a cell. Whatever comes from configs is set as text, never as HTML.
(() => {
  const $ = (id) => document.getElementById(id);
  const tables = new Map(JSON.parse($("content").textContent).map((table) => [table.id, table]));
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  function node(tag, text = "", children = []) {
    const made = document.createElement(tag);
    made.textContent = text;
    made.append(...children);
    return made;
  }

  // ---- colours

  const stored = { get: () => { try { return localStorage.getItem("fedbench-theme") || ""; } catch { return ""; } },
    set: (value) => { try { localStorage.setItem("fedbench-theme", value); } catch { /* a page from disk may have no storage */ } } };

  function paint(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    if (open) figures();
  }

  // ---- filters

  const form = $("filters");

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    let shownTables = 0, shownCells = 0;
    for (const section of all("main > section")) {
      const cells = wanted.paper && section.dataset.paper !== wanted.paper ? 0 : narrow(section, wanted);
      section.hidden = cells === 0;
      document.querySelector(`[data-card="${section.id}"]`).hidden = section.hidden;
      shownTables += cells > 0;
      shownCells += cells;
    }
    $("shown").textContent = `${shownTables} of ${tables.size} tables, ${shownCells} cells`;
    $("none").hidden = shownTables > 0;
  }

  // The filters are kept in the address, so that a view can be bookmarked or sent.
  function keep() {
    const set = [...new FormData(form)].filter(([, value]) => value);
    history.replaceState(null, "", `#${new URLSearchParams(set)}`);
    filter();
  }

  // Hides the columns and rows of a table that do not match; returns how many cells remain that do.
  function narrow(section, wanted) {
    const columns = new Set();
    for (const head of all("th[data-datasets]", section)) {
      if (!wanted.dataset || head.dataset.datasets.split(" ").includes(wanted.dataset)) columns.add(head.dataset.column);
    }
    for (const each of all("[data-column]", section)) each.hidden = !columns.has(each.dataset.column);
    const width = tables.get(section.id).metrics.length;
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

  function restore() {
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      const select = form.elements.namedItem(name);
      if (select && all("option", select).some((option) => option.value === value)) select.value = value;
    }
  }

  // ---- keyboard: one stop of the tab key for each table, arrow keys within

  const visible = (section) => all("tbody tr:not([hidden])", section).map((row) => all("td:not([hidden]) button", row));

  function enter(section) {
    const grid = visible(section).flat();
    const current = grid.find((button) => button.tabIndex === 0);
    for (const button of all("td button", section)) button.tabIndex = -1;
    if (grid.length) (current || grid[0]).tabIndex = 0;
  }

  function move(event, button) {
    const section = button.closest("section");
    const grid = visible(section);
    const row = grid.findIndex((line) => line.includes(button));
    const column = grid[row].indexOf(button);
    const last = grid[row].length - 1;
    const [toRow, toColumn] = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [event.ctrlKey ? 0 : row, 0], End: [event.ctrlKey ? grid.length - 1 : row, last],
    }[event.key] || [];
    if (toRow === undefined) return;
    event.preventDefault();
    const target = (grid[toRow] || [])[toColumn];
    if (target) focusOn(target);
  }

  function focusOn(button) {
    for (const each of all("td button[tabindex='0']", button.closest("section"))) each.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
    const head = button.closest("tr").querySelector("th").getBoundingClientRect();
    const hidden = head.right - button.getBoundingClientRect().left; // behind the column that stays
    if (hidden > 0) button.closest(".scroll").scrollLeft -= hidden;
  }

  // ---- the card of a cell, on hover and focus

  const tip = $("tip");
  let described = null, leaving = 0;

  function place(button) {
    clearTimeout(leaving);
    const [table, key] = of(button);
    const detail = table.cells[key];
    const [row, column] = key.split("-").map(Number);
    const lines = [node("b", heading(table, key))];
    lines.push(node("p", [detail.ours && `ours ${detail.ours}`, detail.paper && `paper ${detail.paper}`].filter(Boolean).join(", ")));
    if (detail.paper && detail.ours) lines.push(node("p", `difference ${detail.difference}`));
    lines.push(node("p", detail.verdict));
    if (detail.also.length) lines.push(node("p", `also equivalent to the published ${detail.also.join(", ")}`));
    if (detail.reason && detail.reason !== detail.verdict) lines.push(node("p", detail.reason));
    if (detail.seeds.length) {
      lines.push(node("p", detail.seeds.map(([seed, value]) => `seed ${seed}: ${value}`).join(", ")));
      lines.push(node("p", "runs ", [node("code", detail.seeds.map(([, , run]) => run.slice(0, 8)).join(" "))]));
    }
    lines.push(node("p", "", [node("code", [...table.rows[row].overrides, ...table.columns[column].own[row]].join(" "))]));
    lines.push(Object.assign(node("p", "Enter or click: curves, matrix, whole configuration"), { className: "hint" }));
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const cell = button.getBoundingClientRect(), card = tip.getBoundingClientRect();
    const left = Math.min(Math.max(cell.left, 8), document.documentElement.clientWidth - card.width - 8);
    const below = cell.bottom + card.height + 12 < innerHeight || cell.top < card.height + 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(below ? cell.bottom + 6 : cell.top - card.height - 6) + scrollY}px`;
    if (described) described.removeAttribute("aria-describedby");
    button.setAttribute("aria-describedby", "tip");
    described = button;
  }

  function hide() {
    clearTimeout(leaving);
    tip.hidden = true;
    if (described) described.removeAttribute("aria-describedby");
    described = null;
  }

  const of = (button) => [tables.get(button.closest("table").dataset.table), button.dataset.cell];

  function heading(table, key) {
    const [row, column, metric] = key.split("-").map(Number);
    return `${table.rows[row].label}: ${table.columns[column].label}, ${table.metrics[metric].label}`;
  }

  // ---- the dialog of a cell

  const dialog = $("cell");
  let open = null;

  async function show(button) {
    const [table, key] = of(button);
    hide();
    const run = table.cells[key].seeds.map(([, , each]) => table.runs[each]).find(Boolean);
    open = { table, key: key.split("-").map(Number), button, set: run ? run[3] : "" };
    $("cell-title").textContent = heading(table, key);
    $("facts").replaceChildren(...facts(table, table.cells[key]));
    $("config").replaceChildren(...config(table, open.key));
    dialog.showModal();
    dialog.scrollTop = 0;
    await figures();
  }

  async function figures() {
    const { table, key } = open;
    try {
      const data = await Figures.behind(table.id);
      if (!open || open.key !== key) return;
      options($("sets"), data.sets, open.set);
      all(".choices label", dialog).forEach((label) => { label.hidden = !data.curves[`${key[0]}|${key[1]}`]; });
      await Figures.curves($("curves"), table, data, key, $("sets").value, $("lines").value, open.set);
      await Figures.matrix($("matrix"), data, key);
    } catch (error) {
      Figures.say($("curves"), `The figures cannot be drawn in this browser (${error.message}).`);
    }
  }

  // The test set that was chosen before, at first the one that the table's values are measured on.
  function options(select, sets, measured) {
    const chosen = select.value || measured;
    select.replaceChildren(...sets.map((name) => {
      const option = node("option", name.replace("acc_on_", "").replaceAll("_", " "));
      option.value = name;
      return option;
    }));
    if (sets.includes(chosen)) select.value = chosen;
  }

  function facts(table, detail) {
    const pairs = [["ours", detail.ours], ["paper", detail.paper], ["difference", detail.difference.replace(/^-$/, "")], ["verdict", detail.verdict],
      ["counted apart, because", detail.apart], ["also equivalent to the published", detail.also.join(", ")]];
    const list = node("dl", "", pairs.filter(([, text]) => text).map(([name, text]) => node("div", "", [node("dt", name), node("dd", text)])));
    const parts = [list];
    if (detail.reason && detail.reason !== detail.verdict) parts.push(node("p", detail.reason));
    if (detail.seeds.length) {
      const known = detail.seeds.some(([, , run]) => table.runs[run]);
      const about = (run) => (known ? (table.runs[run] || ["", "", ""]).slice(0, 3) : []);
      const lines = detail.seeds.map(([seed, value, run]) => [seed, value, ...about(run), run]);
      const cells = (tag, values) => node("tr", "", values.map((value) => node(tag, value)));
      const made = node("table", "", [
        node("thead", "", [cells("th", ["seed", "value", ...(known ? ["rounds", "seconds", "MB sent"] : []), "run"])]),
        node("tbody", "", lines.map((values) => cells("td", values))),
      ]);
      made.className = "plain";
      parts.push(Object.assign(node("div", "", [made]), { className: "box" }));
    }
    return parts;
  }

  function config(table, [row, column]) {
    const parts = [
      ["table", table.base], ["column", table.columns[column].overrides], ["row", table.rows[row].overrides],
      ["row in this column", table.columns[column].own[row]], ["substitute data", table.columns[column].substitute],
      ["command line", [...table.changed, ...table.varied]], ["scale", table.scale === "paper" ? [] : [table.scale]],
    ];
    const lines = parts.filter(([, texts]) => texts.length)
      .map(([name, texts]) => node("p", `${name}: `, texts.map((text) => node("code", text))));
    return [node("p", "Overrides in the order in which they apply; later ones win."), ...lines];
  }

  // ---- events

  form.addEventListener("change", keep);
  // Not the form's own "reset" event: it comes before the fields change.
  $("show-all").addEventListener("click", () => { form.reset(); keep(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  $("theme").addEventListener("change", (event) => { stored.set(event.target.value); paint(event.target.value); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (open) figures(); });

  const main = $("tables");
  const cellOf = (event) => event.target.closest("td button");
  main.addEventListener("click", (event) => { if (cellOf(event)) { focusOn(cellOf(event)); show(cellOf(event)); } });
  main.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    else if (cellOf(event)) move(event, cellOf(event));
  });
  main.addEventListener("focusin", (event) => { if (cellOf(event) && cellOf(event).matches(":focus-visible")) place(cellOf(event)); });
  main.addEventListener("focusout", hide);
  main.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse" && cellOf(event)) place(cellOf(event)); });
  // The card stays a moment, so that the pointer can reach it and its text can be copied.
  const leave = () => { clearTimeout(leaving); leaving = setTimeout(hide, 250); };
  main.addEventListener("pointerout", leave);
  tip.addEventListener("pointerover", () => clearTimeout(leaving));
  tip.addEventListener("pointerleave", leave);

  $("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => {
    Figures.clear($("curves"));
    Figures.clear($("matrix"));
    const { button } = open;
    open = null;
    button.focus();
    hide();
  });
  for (const name of ["lines", "sets"]) $(name).addEventListener("change", figures);

  $("theme").value = stored.get();
  paint($("theme").value);
  restore();
  filter();
})();
