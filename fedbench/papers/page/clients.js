"use strict";
// Client by client: the collaboration matrix, a map of the clients, gains over Local, differences of two runs.
const Clients = (() => {
  const NONE = "The runs behind this cell recorded no collaboration matrix.";

  async function matrix(box, found, by) {
    if (!found) return Plots.say(box, NONE);
    const shown = found.W.length;
    const order = by === "coalition" ? found.order : found.W.map((_, i) => i);
    const weight = (level) => (level === null ? null : level * found.unit);
    const side = Math.min(box.clientWidth || 480, 520);
    const names = order.map(String);
    const ticks = { type: "category", showgrid: false, zeroline: false, constrain: "domain", ...(shown > 30 ? { nticks: 10 } : { dtick: 1 }) };
    const gap = shown <= 40 ? 1 : 0;
    const which = `seed ${Plots.label(found.seed)}${shown < found.clients ? `, first ${shown} of ${found.clients}` : ""}`;
    await Plots.draw(box, [{
      type: "heatmap", x: names, y: names, z: order.map((i) => order.map((j) => weight(found.W[i][j]))), colorscale: "Viridis", xgap: gap, ygap: gap,
      colorbar: { thickness: 12, outlinewidth: 0 }, hovertemplate: "client %{y} takes %{z:.3g} of client %{x}<extra></extra>",
    }], {
      height: side - 40, width: side,
      xaxis: { title: { text: `from client (${which})` }, ...ticks },
      yaxis: { title: { text: "to client" }, autorange: "reversed", scaleanchor: "x", constraintoward: "top", ...ticks },
    }, `Weights of ${found.clients} clients' uploads in each other's models, seed ${found.seed}`);
  }

  // 0, 1, 2, 5 as "0–2, 5"; the rest of many is counted.
  function ranges(clients) {
    const found = [];
    for (const client of clients) {
      const last = found[found.length - 1];
      if (last && last[1] === client - 1) last[1] = client;
      else found.push([client, client]);
    }
    const words = found.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
    return words.slice(0, 6).join(", ") + (words.length > 6 ? ", …" : "");
  }

  // Around values, with room for a label.
  function roomy(values) {
    const low = Math.min(...values), high = Math.max(...values);
    const room = 0.2 * (high - low) || 1;
    return [low - room, high + room];
  }

  // Clients at one place are one mark: its size is their number.
  async function map(box, found) {
    if (!found) return Plots.say(box, NONE);
    const places = new Map();
    found.place.forEach(([x, y], client) => {
      const key = `${x} ${y} ${found.group[client]}`;
      if (!places.has(key)) places.set(key, { x, y, group: found.group[client], clients: [] });
      places.get(key).clients.push(client);
    });
    const marks = [...places.values()];
    const coalitions = new Set(found.group).size;
    await Plots.draw(box, [{
      x: marks.map((m) => m.x), y: marks.map((m) => m.y), text: marks.map((m) => ranges(m.clients)), mode: marks.length <= 12 ? "markers+text" : "markers",
      textposition: "top center", cliponaxis: false, hovertemplate: "clients %{text}<extra></extra>",
      marker: { size: marks.map((m) => 9 + 5 * Math.sqrt(m.clients.length - 1)), symbol: marks.map((m) => Plots.symbol(m.group)), color: marks.map((m) => Plots.colour(m.group)) },
    }], {
      height: 320, hovermode: "closest", 
      xaxis: { title: { text: "first component of the rows" }, range: roomy(marks.map((m) => m.x)) },
      yaxis: { title: { text: "second component" }, range: roomy(marks.map((m) => m.y)) },
    }, `${found.group.length} clients in ${coalitions} groups that take from the same clients`);
  }

  const keyOf = (table, cell, seed) => (table.cells[`${cell.join("-")}-0`].seeds.find(([each]) => String(each) === seed) || [])[2];

  // Mean over the seeds that both runs have on the same partition of one run's accuracy less the other's, client by client.
  function paired(one, other) {
    const [mine, theirs] = [one, other].map(({ data, cell }) => data.clients[cell.join("|")] || {});
    const seeds = Object.keys(mine).filter((seed) => {
      const runs = [one, other].map(({ table, cell }) => table.runs[keyOf(table, cell, seed)]);
      return theirs[seed] && theirs[seed].length === mine[seed].length && runs.every(Boolean) && runs[0].partition === runs[1].partition;
    });
    if (!seeds.length) return null;
    const bySeed = seeds.map((seed) => mine[seed].map((value, client) => value - theirs[seed][client]));
    const means = bySeed.map((values) => values.reduce((a, b) => a + b, 0) / values.length);
    return { seeds, means, values: mine[seeds[0]].map((_, client) => bySeed.reduce((sum, values) => sum + values[client], 0) / seeds.length) };
  }

  function words(name, { seeds, means, values }) {
    const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
    const count = (test) => values.filter(test).length;
    const mean = means.reduce((a, b) => a + b, 0) / means.length;
    const range = seeds.length > 1 ? ` (by seed ${signed(Math.min(...means))} to ${signed(Math.max(...means))})` : "";
    return `${name}: ${signed(mean)} points on average over ${values.length} clients${range}; better on ${count((v) => v > 0)}, ` +
      `worse on ${count((v) => v < 0)}, equal on ${count((v) => v === 0)}; seeds ${seeds.join(", ")} on the same partitions`;
  }

  // `found`: [{name, values}], sorted by the first; bars for one, marks for several.
  async function differences(box, found, title) {
    const [{ values }] = found;
    const order = values.map((_, client) => client).sort((a, b) => values[b] - values[a]);
    const x = order.map(String);
    const traces = found.map((each, i) => {
      const y = order.map((client) => each.values[client]);
      const sign = y.map((value) => (value > 0 ? 0 : 1));
      return found.length === 1
        ? { type: "bar", x, y, name: Plots.label(each.name), marker: { color: sign.map(Plots.colour), pattern: { shape: sign.map((s) => (s ? "/" : "")) } } }
        : { x, y, name: Plots.label(each.name), mode: "markers", marker: { color: Plots.colour(i), symbol: Plots.symbol(i), size: 8 } };
    });
    await Plots.draw(box, traces, {
      height: 320, showlegend: found.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, hovermode: "closest",
      xaxis: { type: "category", title: { text: "client, sorted by difference" }, ...(x.length <= 40 ? { dtick: 1 } : { nticks: 10 }) },
      yaxis: { title: { text: title } },
    }, found.map((each) => `${each.name}: ${each.values.filter((v) => v > 0).length} of ${x.length} clients above zero`).join("; "));
  }

  // The row of Local runs that those of a cell are measured against; -1 if it is not in the table.
  function localRow(table, [row, column]) {
    const keys = table.cells[`${row}-${column}-0`].seeds.map(([, , key]) => (table.runs[key] || {}).local).filter(Boolean);
    return table.rows.findIndex((_, i) => table.cells[`${i}-${column}-0`].seeds.some(([, , key]) => keys.includes(key)));
  }

  async function gain(box, table, data, cell) {
    const local = localRow(table, cell);
    if (local === cell[0]) return Plots.say(box, "This is Local, which the others are compared with.");
    const kept = (row) => Object.keys(data.clients[`${row}|${cell[1]}`] || {}).length > 0;
    const lacking = [[cell[0], "this cell"], [local, "Local"]].filter(([row]) => !kept(row)).map(([, name]) => name);
    if (lacking.length) return Plots.say(box, `The accuracies by client of ${lacking.join(" and ")} are not kept here; the command makes the runs again, and keeps them.`);
    const found = paired({ table, data, cell }, { table, data, cell: [local, cell[1]] });
    if (!found) return Plots.say(box, "This cell and Local have no seed on the same partition.");
    await differences(box, [{ name: "gain over Local", values: found.values }], "gain over Local, points");
  }

  return { matrix, map, gain, paired, words, differences };
})();
