"use strict";
// The card of a cell, on hover and focus.
const Card = (() => {
  const tip = $("tip");
  let described = null, leaving = 0;

  const cellOf = (event) => event.target.closest("td button[data-cell]");
  const of = (button) => [tables.get(button.closest("table").dataset.table), button.dataset.cell];

  function heading(table, key) {
    const [row, column, metric] = key.split("-").map(Number);
    return `${table.rows[row].label}: ${table.columns[column].label}, ${table.metrics[metric].label}`;
  }

  function place(button) {
    clearTimeout(leaving);
    const [table, key] = of(button);
    const detail = table.cells[key];
    const [row, column] = key.split("-").map(Number);
    const lines = [node("b", heading(table, key))];
    if (table.columns[column].note) lines.push(node("p", table.columns[column].note));
    lines.push(node("p", [detail.ours && `ours ${detail.ours}`, detail.paper && `paper ${detail.paper}`].filter(Boolean).join(", ")));
    if (detail.difference) lines.push(node("p", `difference ${detail.difference}`));
    lines.push(node("p", detail.verdict));
    if (detail.also.length) lines.push(node("p", `also equivalent to the published ${detail.also.join(", ")}`));
    if (detail.reason && detail.reason !== detail.verdict) lines.push(node("p", detail.reason));
    if (detail.seeds.length) {
      lines.push(node("p", detail.seeds.map(([seed, value]) => `seed ${seed}: ${value}`).join(", ")));
      lines.push(node("p", "runs ", [node("code", detail.seeds.map(([, , run]) => run.slice(0, 8)).join(" "))]));
    }
    lines.push(node("p", "", [node("code", [...table.rows[row].overrides, ...table.columns[column].own[row]].join(" "))]));
    lines.push(node("p", "Enter or click: curves, clients, command, whole configuration", [], { className: "hint" }));
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

  const main = $("tables");
  main.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  main.addEventListener("focusin", (event) => { if (cellOf(event) && cellOf(event).matches(":focus-visible")) place(cellOf(event)); });
  main.addEventListener("focusout", hide);
  main.addEventListener("pointerover", (event) => { if (event.pointerType === "mouse" && cellOf(event)) place(cellOf(event)); });
  // The card stays a moment, so that the pointer can reach it and its text can be copied.
  const leave = () => { clearTimeout(leaving); leaving = setTimeout(hide, 250); };
  main.addEventListener("pointerout", leave);
  tip.addEventListener("pointerover", () => clearTimeout(leaving));
  tip.addEventListener("pointerleave", leave);

  return { hide, cellOf, of, heading };
})();
