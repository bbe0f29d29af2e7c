"use strict";
// Learning curves: of a cell by seed, of all rows of its column, of runs chosen for comparison.
const Curves = (() => {
  const EARLY = 0.1; // of the way: values this early do not stretch the axis
  const ACROSS = { round: "round", megabytes: "megabytes sent, spread evenly over the rounds", seconds: "seconds, spread evenly over the rounds" };

  // How far a round is along the horizontal axis: 1, or its share of the run's megabytes or seconds.
  function step(table, [row, column], seed, across) {
    if (across === "round") return 1;
    const own = (table.cells[`${row}-${column}-0`].seeds.find(([each]) => String(each) === seed) || [])[2];
    const run = table.runs[own];
    return run ? Number(run[across]) / Number(run.rounds) : NaN;
  }

  // The curve of each seed that was scored on the set: [{seed, round, x, y}].
  function bySeed(table, data, cell, set, across) {
    const scored = ([, run]) => (run[set] || []).some((value) => value !== null);
    return Object.entries(data.curves[cell.join("|")] || {}).filter(scored).map(([seed, run]) => {
      const each = step(table, cell, seed, across);
      return { seed, round: run.round, x: run.round.map((round) => round * each), y: run[set] };
    });
  }

  // Mean and sample standard deviation over seeds at the rounds that all of them have.
  function mean(runs) {
    const points = new Map();
    for (const run of runs) {
      run.round.forEach((round, i) => {
        if (run.y[i] !== null) points.set(round, [...(points.get(round) || []), [run.x[i], run.y[i]]]);
      });
    }
    const whole = [...points].filter(([, values]) => values.length === runs.length).sort((a, b) => a[0] - b[0]);
    const average = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const y = whole.map(([, values]) => average(values.map((value) => value[1])));
    const spread = whole.map(([, values], i) => (values.length < 2 ? 0
      : Math.sqrt(values.reduce((sum, value) => sum + (value[1] - y[i]) ** 2, 0) / (values.length - 1))));
    return { x: whole.map(([, values]) => average(values.map((value) => value[0]))), y, spread };
  }

  const look = (i, width) => ({ stroke: Plots.colour(i), "stroke-dasharray": Plots.dash(i), "stroke-width": width });

  // The published value, where it can be compared with the lines.
  function published(table, [row, column, metric], set, measured) {
    const detail = table.cells[`${row}-${column}-${metric}`];
    const value = parseFloat(detail.paper);
    const comparable = detail.curve && (!measured || measured === set);
    const own = table.scale === "paper" && !table.changed.length && !table.columns[column].substitute.length;
    return comparable && own && Number.isFinite(value) ? value : null;
  }

  function ofCell(box, table, data, key, chosen, measured) {
    const [row, column] = key;
    const runs = bySeed(table, data, [row, column], chosen.set, chosen.across);
    if (!runs.length) return Plots.say(box, "No learning curve was kept for this cell.");
    const lines = chosen.lines === "rows"
      ? table.rows.flatMap((each, i) => {
        const own = bySeed(table, data, [i, column], chosen.set, chosen.across);
        return own.length ? [{ ...mean(own), spread: [], name: each.label, look: look(i, i === row ? 4 : 1.5) }] : [];
      })
      : runs.map((run, i) => ({ ...run, name: `seed ${run.seed}`, look: look(i, 1.5) }));
    if (chosen.lines === "seeds" && runs.length > 1) lines.push({ ...mean(runs), spread: [], name: "mean", look: { stroke: "currentColor", "stroke-width": 3 } });
    return draw(box, lines, chosen.across, published(table, key, chosen.set, measured));
  }

  // `compared`: [{name, table, data, cell}]; a band of one standard deviation on either side where there are several seeds.
  function overlaid(box, compared, wanted) {
    const lines = compared.flatMap(({ name, table, data, cell }, i) => {
      const runs = bySeed(table, data, cell, wanted.set, wanted.across);
      const found = mean(runs);
      return runs.length ? [{ ...found, spread: runs.length > 1 ? found.spread : [], name, look: look(i, 2) }] : [];
    });
    if (!lines.length) return Plots.say(box, "No learning curve of these runs was kept on this test set.");
    return draw(box, lines, wanted.across, null);
  }

  function draw(box, lines, across, also) {
    const last = Math.max(...lines.flatMap(({ x }) => x));
    const all = lines.flatMap(({ x, y, spread = [] }) => y.flatMap((value, i) => (value === null ? [] : [[x[i], value - (spread[i] || 0)], [x[i], value + (spread[i] || 0)]])));
    const late = [...all.filter(([x]) => x >= EARLY * last).map(([, value]) => value), ...(also === null ? [] : [also])];
    const room = 0.05 * (Math.max(...late) - Math.min(...late)) || 0.5;
    const low = Math.min(...late) - room, high = Math.max(...late) + room;
    const title = all.some(([, value]) => value < low) ? "accuracy, % (first values below)" : "accuracy, %";
    Plots.draw(box, {
      x: { low: 0, high: last, title: ACROSS[across], ticks: Plots.ticks(0, last) },
      y: { low, high, title, ticks: Plots.ticks(low, high) },
      height: 360, key: lines.map(({ name, look: own }) => ({ name, sign: Plots.stroke(own) })),
    }, (place) => [
      ...lines.flatMap(({ name, x, y, spread = [], look: own }) => {
        const at = (value, i) => [place.x(x[i]), value === null ? null : place.y(value)];
        const band = spread.length ? [Plots.area(y.map((value, i) => at(value + spread[i], i)), y.map((value, i) => at(value - spread[i], i)), own.stroke)] : [];
        const told = (i) => `${name}, ${across} ${Number(x[i].toPrecision(4))}: ${y[i].toFixed(2)} %`;
        const points = y.flatMap((value, i) => (value === null ? [] : [Plots.point(...at(value, i), { fill: own.stroke }, told(i))]));
        return [...band, Plots.line(y.map(at), own), ...points];
      }),
      ...(also === null ? [] : [
        Plots.line([[0, place.y(also)], [place.wide, place.y(also)]], { class: "paper" }),
        Plots.svg("text", { class: "faint", x: place.wide - 4, y: place.y(also) - 4, "text-anchor": "end" }, ["paper"]),
      ]),
    ], `Accuracy by ${across}, ${lines.length} lines; ends: ${lines.map(({ name, y }) => `${name} ${ending(y)}`).join(", ")}`);
  }

  function ending(values) {
    const known = values.filter((value) => value !== null);
    return known.length ? `${known[known.length - 1].toFixed(2)} %` : "unknown";
  }

  return { ofCell, overlaid };
})();
