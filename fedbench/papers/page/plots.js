"use strict";
// How every figure is drawn: colours of the page, labels as text, axes that fit the data or begin at zero.
const Plots = (() => {
  const COLOURS = ["#3b82d6", "#e0793a", "#2fa573", "#b866cc", "#c7a024", "#dd4f63", "#22a5b0", "#8f8f8f"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "12px,3px,3px,3px,3px,3px", "1px,6px"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon"];
  const EARLY = 0.1; // of the way: values this early do not stretch an axis that fits the data
  const settings = { responsive: true, displaylogo: false, displayModeBar: false };

  // A colour and, for those who do not see it, a pattern that differs among neighbours, and where the colour comes again.
  const turn = (i, of) => of[(i + Math.floor(i / COLOURS.length)) % of.length];
  const colour = (i) => COLOURS[i % COLOURS.length];
  const dash = (i) => turn(i, DASHES);
  const symbol = (i) => turn(i, SYMBOLS);

  // Plotly reads a few tags and entities in labels: a label is text here.
  const label = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function layout(box, more) {
    const style = getComputedStyle(box);
    const line = style.borderTopColor;
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: style.color, family: style.fontFamily, size: 13 },
      margin: { l: 50, r: 12, t: 10, b: 44 },
      hoverlabel: { namelength: -1 },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      ...more,
      xaxis: { ...axis, ...more.xaxis },
      yaxis: { ...axis, ...more.yaxis },
    };
  }

  // The vertical axis of lines: all values but the first ones and `also`, or from zero.
  function vertical(traces, from, also = []) {
    const title = "accuracy, %";
    if (from === "zero") return { title: { text: title }, rangemode: "tozero" };
    const values = [...also];
    let cut = false;
    for (const { x, y } of traces) {
      const start = EARLY * Math.max(...x);
      y.forEach((value, i) => { if (value !== null && x[i] >= start) values.push(value); });
    }
    if (!values.length) return { title: { text: title } };
    const low = Math.min(...values), high = Math.max(...values);
    const room = 0.05 * (high - low) || 0.5;
    for (const { y } of traces) cut = cut || y.some((value) => value !== null && value < low - room);
    return { title: { text: cut ? `${title} (first values below)` : title }, range: [low - room, high + room] };
  }

  const HORIZONTAL = { round: "round", megabytes: "megabytes sent, spread evenly over the rounds", seconds: "seconds, spread evenly over the rounds" };

  function horizontal(traces, across) {
    const last = Math.max(...traces.flatMap((trace) => trace.x));
    return { title: { text: HORIZONTAL[across] }, rangemode: "tozero", ...(across === "round" && last <= 10 ? { dtick: 1 } : {}) };
  }

  function say(box, text) {
    clear(box);
    box.replaceChildren(node("p", text));
  }

  async function draw(box, traces, more, said) {
    const Plotly = await Packed.plotly();
    if (box.firstElementChild && box.firstElementChild.tagName === "P") box.replaceChildren();
    await Plotly.react(box, traces, layout(box, more), settings);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", said);
  }

  function clear(box) {
    if (window.Plotly && box.classList.contains("js-plotly-plot")) window.Plotly.purge(box);
    box.removeAttribute("role");
    box.removeAttribute("aria-label");
    box.replaceChildren();
  }

  return { colour, dash, symbol, label, vertical, horizontal, say, draw, clear };
})();
