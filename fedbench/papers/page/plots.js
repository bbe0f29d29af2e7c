"use strict";
// Figures as SVG: lines with bands, bars, marks, matrices. What is hovered says what it is.
const Plots = (() => {
  const COLOURS = ["#3b82d6", "#e0793a", "#2fa573", "#b866cc", "#c7a024", "#dd4f63", "#22a5b0", "#8f8f8f"];
  const DASHES = ["none", "8 4", "2 3", "8 3 2 3", "14 4", "14 4 3 4", "10 3 3 3 3 3", "1 6"];
  const SYMBOLS = ["●", "■", "◆", "▲", "✖", "★", "✚", "⬟"];
  const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]; // viridis
  const LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 44; // pixels around the frame

  // A colour and, for those who do not see it, a pattern that differs among neighbours, and where the colour comes again.
  const turn = (i, of) => of[(i + Math.floor(i / COLOURS.length)) % of.length];
  const colour = (i) => COLOURS[i % COLOURS.length];
  const dash = (i) => turn(i, DASHES);
  const symbol = (i) => turn(i, SYMBOLS);

  function svg(tag, attributes, children = [], title = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (title) made.append(svg("title", {}, [title]));
    made.append(...children);
    return made;
  }

  // [value, text] of about `count` round numbers from low to high.
  function ticks(low, high, count = 5) {
    const least = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * (1 - 1e-9));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) found.push(Number((i * step).toPrecision(12)));
    return found.map((value) => [value, String(value)]);
  }

  // At most about ten of the places of categories.
  const some = (names) => names.map((name, i) => [i, name]).filter(([i]) => i % Math.ceil(names.length / 10) === 0);

  // A frame with two axes, each {low, high, title, ticks}; `marks(place)` are drawn in it and cut at its edges, `beyond`
  // are drawn over it. place.x and place.y lead from values to pixels.
  function draw(box, { x, y, width = Math.max(box.clientWidth, 280), height = 320, key = [] }, marks, said) {
    const wide = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
    const share = (axis, value) => (value - axis.low) / (axis.high - axis.low || 1);
    const place = { x: (value) => wide * share(x, value), y: (value) => tall * (1 - share(y, value)), wide, tall };
    const text = (words, at) => svg("text", at, [words]);
    const grid = [
      ...y.ticks.flatMap(([value, words]) => [
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: TOP + place.y(value), y2: TOP + place.y(value) }),
        text(words, { x: LEFT - 6, y: TOP + place.y(value) + 4, "text-anchor": "end" }),
      ]),
      ...x.ticks.map(([value, words]) => text(words, { x: LEFT + place.x(value), y: height - BOTTOM + 16, "text-anchor": "middle" })),
      text(x.title, { x: LEFT + wide / 2, y: height - 8, "text-anchor": "middle" }),
      text(y.title, { transform: `translate(13 ${TOP + tall / 2}) rotate(-90)`, "text-anchor": "middle" }),
    ];
    const inside = svg("svg", { x: LEFT, y: TOP, width: wide, height: tall }, marks(place));
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": said }, [...grid, inside]);
    const named = key.map(({ name, sign }) => node("li", "", [sign, ` ${name}`]));
    box.replaceChildren(drawn, ...(named.length ? [node("ul", "", named, { className: "key" })] : []));
  }

  // The sign of a line or of marks in the key.
  const stroke = (look) => svg("svg", { width: 30, height: 8, "aria-hidden": "true" }, [svg("line", { x1: 0, x2: 30, y1: 4, y2: 4, ...look })]);

  const point = (x, y, look, title) => svg("circle", { cx: x, cy: y, r: 2.5, ...look }, [], title);
  const bar = (x, y, width, height, look, title) => svg("rect", { x, y, width, height, ...look }, [], title);
  const mark = (x, y, i, title) => svg("text", { x, y: y + 4, style: `fill: ${colour(i)}`, "text-anchor": "middle" }, [symbol(i)], title);

  // A line through points [x, y], interrupted where y is null.
  function line(points, look) {
    let d = "";
    points.forEach(([x, y], i) => { if (y !== null) d += `${i && points[i - 1][1] !== null ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`; });
    return svg("path", { d, fill: "none", ...look });
  }

  const area = (upper, lower, fill) => svg("path", {
    d: `M${[...upper, ...[...lower].reverse()].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}Z`, fill, "fill-opacity": 0.18,
  });

  // Rows of values between 0 and 1, null where there is none, as an address of a picture with one pixel a value.
  function picture(rows) {
    const canvas = node("canvas", "", [], { width: rows[0].length, height: rows.length });
    const pixels = new ImageData(rows[0].length, rows.length);
    rows.flat().forEach((share, i) => {
      if (share === null) return;
      const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1), low = Math.min(Math.floor(at), RAMP.length - 2);
      RAMP[low].forEach((from, c) => { pixels.data[4 * i + c] = from + (at - low) * (RAMP[low + 1][c] - from); });
      pixels.data[4 * i + 3] = 255;
    });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas.toDataURL();
  }

  const say = (box, words) => box.replaceChildren(node("p", words));

  return { colour, dash, symbol, svg, ticks, some, draw, stroke, point, bar, mark, line, area, picture, say };
})();
