"use strict";
// Learning curves: of a cell by seed, of all rows of its column, of runs chosen for comparison.
const Curves = (() => {
  // How far a round is along the horizontal axis: 1, or its share of the run's megabytes or seconds.
  function step(table, [row, column], seed, across) {
    if (across === "round") return 1;
    const own = (table.cells[`${row}-${column}-0`].seeds.find(([each]) => String(each) === seed) || [])[2];
    const run = table.runs[own];
    return run ? Number(run[across]) / Number(run.rounds) : NaN;
  }

  // Lines of each seed that was scored on the set: [{seed, x, y}].
  function lines(table, data, cell, set, across) {
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

  function bySeed(runs) {
    const drawn = runs.map(({ seed, x, y }, i) => ({
      x, y, name: `seed ${Plots.label(seed)}`, mode: "lines+markers", marker: { size: 4 },
      line: { color: Plots.colour(i), dash: Plots.dash(i), width: 1.5 }, opacity: 0.85,
    }));
    if (runs.length > 1) {
      const { x, y } = mean(runs);
      drawn.push({ x, y, name: "mean", mode: "lines", line: { color: getComputedStyle(document.body).color, width: 3 } });
    }
    return drawn;
  }

  // A line with a band of one standard deviation on either side where there are several seeds.
  function withBand(name, runs, i, width) {
    const { x, y, spread } = mean(runs);
    const line = { x, y, name: Plots.label(name), mode: "lines", line: { color: Plots.colour(i), dash: Plots.dash(i), width } };
    if (runs.length < 2) return [line];
    const edge = { mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip" };
    return [
      { ...edge, x, y: y.map((value, k) => value - spread[k]) },
      { ...edge, x, y: y.map((value, k) => value + spread[k]), fill: "tonexty", fillcolor: `${Plots.colour(i)}2e` },
      line,
    ];
  }

  // The published value, where it can be compared with the lines.
  function published(table, [row, column, metric], set, measured) {
    const detail = table.cells[`${row}-${column}-${metric}`];
    const value = parseFloat(detail.paper);
    const comparable = detail.curve && (!measured || measured === set);
    const own = table.scale === "paper" && !table.changed.length && !table.columns[column].substitute.length;
    return comparable && own && Number.isFinite(value) ? [value] : [];
  }

  async function ofCell(box, table, data, key, chosen, measured) {
    const [row, column] = key;
    const runs = lines(table, data, [row, column], chosen.set, chosen.across);
    if (!runs.length) return Plots.say(box, "No learning curve was kept for this cell.");
    const many = chosen.lines === "rows";
    const traces = many
      ? table.rows.flatMap((each, i) => {
        const own = lines(table, data, [i, column], chosen.set, chosen.across);
        return own.length ? [{ ...mean(own), name: Plots.label(each.label), mode: "lines", line: { color: Plots.colour(i), dash: Plots.dash(i), width: i === row ? 4 : 1.5 } }] : [];
      })
      : bySeed(runs);
    await draw(box, traces, chosen, published(table, key, chosen.set, measured), many);
  }

  // `chosen`: [{name, table, data, cell}].
  async function overlaid(box, compared, wanted) {
    const traces = compared.flatMap(({ name, table, data, cell }, i) => {
      const runs = lines(table, data, cell, wanted.set, wanted.across);
      return runs.length ? withBand(name, runs, i, 2) : [];
    });
    if (!traces.length) return Plots.say(box, "No learning curve of these runs was kept on this test set.");
    await draw(box, traces, wanted, [], true);
  }

  async function draw(box, traces, chosen, also, many) {
    const named = traces.filter((trace) => trace.name);
    const beside = many && box.clientWidth >= 560; // room for a legend at the right
    const colour = getComputedStyle(box).getPropertyValue("--faint");
    const note = { xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", text: "paper", showarrow: false, font: { color: colour } };
    await Plots.draw(box, traces, {
      height: beside ? Math.max(360, 90 + 20 * named.length) : 340 + 14 * named.length, showlegend: true,
      shapes: also.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { dash: "dot", width: 1.5, color: colour } })),
      annotations: also.map((y) => ({ ...note, y })),
      legend: { traceorder: "normal", ...(beside ? {} : { orientation: "h", y: 1.02, yanchor: "bottom" }) },
      hovermode: many ? "closest" : "x unified",
      xaxis: Plots.horizontal(named, chosen.across), yaxis: Plots.vertical(traces, chosen.axis, also),
    }, `Accuracy by ${chosen.across}, ${named.length} lines; ends: ${named.map((t) => `${t.name} ${ending(t.y)}`).join(", ")}`);
  }

  function ending(values) {
    const known = values.filter((value) => value !== null);
    return known.length ? `${known[known.length - 1].toFixed(2)} %` : "unknown";
  }

  return { ofCell, overlaid };
})();
