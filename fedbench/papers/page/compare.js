"use strict";
// Runs chosen for comparison, and the view that lays them over each other.
const Compare = (() => {
  const dialog = $("comparison");
  let chosen = []; // [table, [row, column]]

  const place = (table, [row, column]) => chosen.findIndex(([t, [r, c]]) => t === table && r === row && c === column);
  const has = (table, cell) => place(table, cell) >= 0;
  const ran = (table, [row, column]) => table.cells[`${row}-${column}-0`].seeds.length > 0;

  function set(runs) {
    chosen = runs.filter(([table, cell]) => ran(table, cell));
    mark();
    Address.keep({ runs: chosen });
  }

  function toggle(table, cell) {
    const own = [table, cell.slice(0, 2)];
    set(has(table, cell) ? chosen.filter((_, i) => i !== place(table, cell)) : [...chosen, own]);
  }

  // All cells of a row.
  function row(box) {
    const table = Tables.of(box);
    const own = table.columns.map((_, column) => [table, [Number(box.dataset.pick), column]]);
    const others = chosen.filter(([each, cell]) => !own.some(([, mine]) => each === table && String(mine) === String(cell)));
    set(box.checked ? [...others, ...own] : others);
  }

  // Marks in the tables, and the tray that counts.
  function mark() {
    for (const box of all("[data-pick]")) {
      const table = Tables.of(box);
      const cells = table.columns.map((_, column) => [Number(box.dataset.pick), column]);
      const here = cells.filter((cell) => has(table, cell)).length;
      box.checked = here > 0;
      box.indeterminate = here > 0 && here < cells.filter((cell) => ran(table, cell)).length;
      box.disabled = !cells.some((cell) => ran(table, cell));
    }
    for (const cell of all("td.chosen")) cell.classList.remove("chosen");
    for (const [table, [line, column]] of chosen) {
      for (const button of all(`[data-cell^="${line}-${column}-"]`, Tables.section(table.id))) button.parentElement.classList.add("chosen");
    }
    $("tray").hidden = chosen.length === 0;
    $("chosen").textContent = `${chosen.length} ${chosen.length === 1 ? "cell" : "cells"} chosen`;
    document.body.classList.toggle("choosing", chosen.length > 0);
  }

  // What tells the chosen cells apart: the row, and column or table where they differ.
  function names() {
    const several = (of) => new Set(chosen.map(of)).size > 1;
    const columns = several(([table, [, column]]) => table.columns[column].label), folders = several(([table]) => table.id);
    return chosen.map(([table, [line, column]]) => [
      table.rows[line].label, ...(columns ? [table.columns[column].label] : []), ...(folders ? [table.id] : []),
    ].join(", "));
  }

  async function show() {
    if (!chosen.length) return;
    Address.keep({ comparing: true });
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    $("comparison-copied").textContent = "";
    listed();
    await figures();
  }

  // A line a cell: its values in every metric of its table.
  function listed() {
    const title = names();
    const labels = [...new Set(chosen.flatMap(([table]) => table.metrics.map((metric) => metric.label)))];
    const lines = chosen.map(([table, [line, column]], i) => {
      const values = labels.map((label) => {
        const metric = table.metrics.findIndex((each) => each.label === label);
        return metric < 0 ? "" : table.cells[`${line}-${column}-${metric}`].ours;
      });
      const seeds = table.cells[`${line}-${column}-0`].seeds.map(([seed]) => seed).join(", ");
      const drop = node("button", "Remove", [], { type: "button", ariaLabel: `Remove ${title[i]}` });
      drop.addEventListener("click", () => {
        toggle(table, [line, column]);
        if (chosen.length) { show(); $("comparison").querySelector(".close").focus(); } else dialog.close();
      });
      return node("tr", "", [node("th", title[i], [], { scope: "row" }), ...[...values, seeds].map((text) => node("td", text)), node("td", "", [drop])]);
    });
    const head = node("tr", "", ["cell", ...labels, "seeds", ""].map((text) => node(text ? "th" : "td", text)));
    $("compared").replaceChildren(node("thead", "", [head]), node("tbody", "", lines));
  }

  async function figures() {
    const title = names();
    const before = chosen;
    const data = await Promise.all(chosen.map(([table]) => Tables.behind(table)));
    if (before !== chosen || !dialog.open) return;
    const runs = chosen.map(([table, cell], i) => ({ name: title[i], table, cell, data: data[i] }));
    const [first, ...others] = data.map((each) => each.sets);
    const shared = first.filter((name) => others.every((sets) => sets.includes(name)));
    options($("comparison-sets"), shared.map((name) => [name, setName(name)]), shared[0]);
    const wanted = { set: $("comparison-sets").value, across: $("comparison-across").value };
    Curves.overlaid($("overlaid"), runs, wanted);
    paired(runs);
  }

  function paired(runs) {
    options($("reference"), runs.map(({ name }, i) => [String(i), name]), "0");
    const reference = runs[Number($("reference").value)];
    const others = runs.filter((run) => run !== reference).map((run) => ({ name: run.name, found: Clients.paired(run, reference) }));
    const drawn = others.filter((each) => each.found);
    const missing = (name) => `${name}: the accuracies by client are not kept of both on the same partition; each cell's command makes them`;
    $("paired-words").replaceChildren(...others.map(({ name, found }) => node("li", found ? Clients.words(name, found) : missing(name))));
    if (!runs[1]) return Plots.say($("paired"), "Choose a second cell to compare with.");
    if (!drawn.length) return Plots.say($("paired"), "There is nothing to draw, for the reasons above.");
    Clients.differences($("paired"), drawn.map(({ name, found }) => ({ name, values: found.values })), "difference, points");
  }

  $("papers").addEventListener("change", (event) => { if (event.target.matches("[data-pick]")) row(event.target); });
  $("papers").addEventListener("keydown", (event) => {
    if (event.key === "c" && !event.ctrlKey && !event.metaKey && !event.altKey) show();
  });
  $("compare").addEventListener("click", show);
  $("clear").addEventListener("click", () => set([]));
  $("copy-comparison").addEventListener("click", () => copy(Address.link({ runs: chosen, comparing: true }), $("comparison-copied"), null));
  for (const name of ["comparison-sets", "comparison-across", "reference"]) $(name).addEventListener("change", figures);
  dialog.addEventListener("close", () => {
    Address.keep({ comparing: false });
    const lost = [document.body, ...all("*", dialog)].includes(document.activeElement); // it was opened by a link
    if (lost && chosen.length) $("compare").focus();
  });

  return { has, toggle, set, show };
})();
