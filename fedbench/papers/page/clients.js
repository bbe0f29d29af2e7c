"use strict";
// Client by client: the collaboration matrix, gains over Local, differences of two runs.
const Clients = (() => {
  const NONE = "The runs behind this cell recorded no collaboration matrix.";

  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

  // Who takes how much from whom: a row is a client, a column one of those that it takes from.
  function matrix(box, found, by) {
    if (!found) return Plots.say(box, NONE);
    const shown = found.W.length;
    const order = by === "coalition" ? found.order : found.W.map((_, i) => i);
    const most = Math.max(...found.W.flat()) || 1;
    const side = Math.min(box.clientWidth || 480, 520);
    const which = `seed ${found.seed}${shown < found.clients ? `, first ${shown} of ${found.clients}` : ""}`;
    const axis = { low: -0.5, high: shown - 0.5, ticks: Plots.some(order.map(String)) };
    const rows = order.map((i) => order.map((j) => (found.W[i][j] === null ? null : found.W[i][j] / most)));
    const told = node("p", `From 0 (dark) to ${(most * found.unit).toPrecision(3)} (bright).`);
    Plots.draw(box, {
      x: { ...axis, title: `from client (${which})` }, y: { ...axis, low: axis.high, high: axis.low, title: "to client" }, width: side, height: side,
    }, (place) => {
      const image = Plots.svg("image", { href: Plots.picture(rows), width: place.wide, height: place.tall, preserveAspectRatio: "none" });
      image.addEventListener("pointermove", (event) => {
        const area = image.getBoundingClientRect();
        const [row, column] = [(event.clientY - area.top) / area.height, (event.clientX - area.left) / area.width].map((share) => order[Math.min(Math.max(Math.floor(share * shown), 0), shown - 1)]);
        const level = found.W[row][column];
        told.textContent = `Client ${row} takes ${level === null ? "no number" : (level * found.unit).toPrecision(3)} of client ${column}.`;
      });
      return [image];
    }, `Weights of ${found.clients} clients' uploads in each other's models, seed ${found.seed}`);
    box.append(told);
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
    const count = (test) => values.filter(test).length;
    const mean = means.reduce((a, b) => a + b, 0) / means.length;
    const range = seeds.length > 1 ? ` (by seed ${signed(Math.min(...means))} to ${signed(Math.max(...means))})` : "";
    return `${name}: ${signed(mean)} points on average over ${values.length} clients${range}; better on ${count((v) => v > 0)}, ` +
      `worse on ${count((v) => v < 0)}, equal on ${count((v) => v === 0)}; seeds ${seeds.join(", ")} on the same partitions`;
  }

  // `found`: [{name, values}], sorted by the first; bars for one, marks for several.
  function differences(box, found, title) {
    const [{ values }] = found;
    const order = values.map((_, client) => client).sort((a, b) => values[b] - values[a]);
    const every = [0, ...found.flatMap((each) => each.values)];
    const room = 0.05 * (Math.max(...every) - Math.min(...every)) || 0.5;
    const low = Math.min(...every) - room, high = Math.max(...every) + room;
    const told = (each, client) => `${each.name}, client ${client}: ${signed(each.values[client])}`;
    Plots.draw(box, {
      x: { low: -0.6, high: order.length - 0.4, title: "client, sorted by difference", ticks: Plots.some(order.map(String)) },
      y: { low, high, title, ticks: Plots.ticks(low, high) },
      key: found.length > 1 ? found.map(({ name }, i) => ({ name, sign: node("span", Plots.symbol(i), [], { style: `color: ${Plots.colour(i)}` }) })) : [],
    }, (place) => [
      Plots.line([[0, place.y(0)], [place.wide, place.y(0)]], { class: "zero" }),
      ...found.flatMap((each, i) => order.map((client, at) => {
        const value = each.values[client];
        if (found.length > 1) return Plots.mark(place.x(at), place.y(value), i, told(each, client));
        const top = place.y(Math.max(value, 0)), width = 0.7 * place.wide / (order.length + 0.2);
        return Plots.bar(place.x(at) - width / 2, top, width, Math.max(place.y(Math.min(value, 0)) - top, 1), { class: value < 0 ? "less" : "more" }, told(each, client));
      })),
    ], found.map((each) => `${each.name}: ${each.values.filter((v) => v > 0).length} of ${order.length} clients above zero`).join("; "));
  }

  // The row of Local runs that those of a cell are measured against; -1 if it is not in the table.
  function localRow(table, [row, column]) {
    const keys = table.cells[`${row}-${column}-0`].seeds.map(([, , key]) => (table.runs[key] || {}).local).filter(Boolean);
    return table.rows.findIndex((_, i) => table.cells[`${i}-${column}-0`].seeds.some(([, , key]) => keys.includes(key)));
  }

  function gain(box, table, data, cell) {
    const local = localRow(table, cell);
    if (local === cell[0]) return Plots.say(box, "This is Local, which the others are compared with.");
    const kept = (row) => Object.keys(data.clients[`${row}|${cell[1]}`] || {}).length > 0;
    const lacking = [[cell[0], "this cell"], [local, "Local"]].filter(([row]) => !kept(row)).map(([, name]) => name);
    if (lacking.length) return Plots.say(box, `The accuracies by client of ${lacking.join(" and ")} are not kept here; the command makes the runs again, and keeps them.`);
    const found = paired({ table, data, cell }, { table, data, cell: [local, cell[1]] });
    if (!found) return Plots.say(box, "This cell and Local have no seed on the same partition.");
    differences(box, [{ name: "gain over Local", values: found.values }], "gain over Local, points");
  }

  return { matrix, gain, paired, words, differences };
})();
