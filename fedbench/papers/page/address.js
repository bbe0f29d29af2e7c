"use strict";
// What the address keeps: the opened cell, the chosen runs and whether they are compared. Labels, not numbers, so that a
// link still leads to the same cell after rows were added.
const Address = (() => {
  const SEPARATOR = "|";
  const state = { cell: null, runs: [], comparing: false };

  const joined = (table, [row, column, metric]) => [
    table.id, table.rows[row].label, table.columns[column].key, ...(metric === undefined ? [] : [table.metrics[metric].label]),
  ].join(SEPARATOR);

  // [table, [row, column, metric]] of a text; null if there is no such cell. Without a metric: [table, [row, column]].
  async function found(text) {
    const [folder, row, column, metric] = text.split(SEPARATOR);
    const table = await Tables.open(folder);
    if (!table) return null;
    const place = [table.rows.findIndex((each) => each.label === row), table.columns.findIndex((each) => each.key === column)];
    if (metric !== undefined) place.push(table.metrics.findIndex((each) => each.label === metric));
    return place.includes(-1) ? null : [table, place];
  }

  // The part of the page that a hash names, as an ordinary link does; any other hash is an address of what is kept.
  const named = () => (location.hash ? all("main [id]").find((part) => `#${part.id}` === decoded()) : null);

  function decoded() {
    try { return decodeURIComponent(location.hash); } catch { return location.hash; }
  }

  function text() {
    const kept = new URLSearchParams();
    for (const [table, place] of state.runs) kept.append("run", joined(table, place));
    if (state.comparing) kept.set("view", "comparison");
    if (state.cell) kept.set("cell", joined(...state.cell));
    return location.href.replace(/#.*/, "") + (kept.size ? `#${kept}` : named() ? location.hash : "");
  }

  function keep(change) {
    Object.assign(state, change);
    history.replaceState(null, "", text());
  }

  // What an address asks for: {cell, runs, comparing}; what it names and is not there is left out.
  async function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    return {
      cell: await found(given.get("cell") || ""),
      runs: (await Promise.all(given.getAll("run").map(found))).filter(Boolean),
      comparing: given.get("view") === "comparison",
    };
  }

  // A link to the page with nothing but `part` opened.
  function link(part) {
    const before = { ...state };
    Object.assign(state, { cell: null, runs: [], comparing: false }, part);
    const address = text();
    Object.assign(state, before);
    return address;
  }

  return { keep, read, link, named };
})();
