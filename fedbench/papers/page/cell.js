"use strict";
// The dialog of a cell: its runs, its command, its figures.
const CellDialog = (() => {
  const dialog = $("cell");
  let open = null;
  // Columns of the runs of a cell: heading, and what it holds.
  const OF_SEED = { seed: ["seed", "keys everything random in the run"], run: ["run", "the run's key"] };
  const FACTS = {
    rounds: ["rounds", "rounds of training"], seconds: ["seconds", "seconds of work on the machine that ran it"],
    megabytes: ["MB sent", "megabytes of all messages, both ways"],
    prepared: ["MB to prepare", "those of them that the method's preparation took; - where that was not recorded"],
    trained: ["MB in training", "the rest, sent in the rounds"],
  };

  async function show(table, key) {
    const name = key.join("-");
    const detail = table.cells[name];
    const run = detail.seeds.map(([, , each]) => table.runs[each]).find(Boolean);
    open = { table, key, set: run ? run.curve : "" };
    $("cell-title").textContent = Tables.heading(table, name);
    $("facts").replaceChildren(...facts(table, detail, key));
    $("command").textContent = table.commands[`${key[0]}-${key[1]}`];
    $("config").replaceChildren(...config(table, key));
    $("copied").textContent = "";
    picked();
    Address.keep({ cell: [table, key] });
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    await figures();
  }

  const button = () => Tables.section(open.table.id).querySelector(`[data-cell="${open.key.join("-")}"]`);

  function picked() {
    const { table, key } = open;
    const ran = table.cells[key.join("-")].seeds.length > 0;
    $("pick").hidden = !ran;
    const chosen = Compare.has(table, key);
    $("pick").setAttribute("aria-pressed", String(chosen));
    $("pick").textContent = chosen ? "Chosen for comparison" : "Choose for comparison";
  }

  async function figures() {
    if (!open) return;
    const { table, key, set } = open;
    const cell = key.slice(0, 2);
    const data = await Tables.behind(table);
    if (!open || open.key !== key) return;
    const at = cell.join("|");
    options($("sets"), data.sets.map((name) => [name, setName(name)]), set);
    for (const [box, has] of [["curves", data.curves[at]], ["matrix", data.matrices[at]]]) {
      $(box).previousElementSibling.hidden = !has;
    }
    Curves.ofCell($("curves"), table, data, key, { set: $("sets").value, lines: $("lines").value, across: $("cell-across").value }, set);
    Clients.gain($("gain"), table, data, cell);
    Clients.matrix($("matrix"), data.matrices[at], $("order").value);
  }

  function facts(table, detail, [, column]) {
    const pairs = [["ours", detail.ours], ["paper", detail.paper], ["difference", detail.difference], ["verdict", detail.verdict],
      ["counted separately, because", detail.apart], ["also equivalent to the published", detail.also.join(", ")], ["data", table.columns[column].note]];
    const list = node("dl", "", pairs.filter(([, text]) => text).map(([name, text]) => node("div", "", [node("dt", name), node("dd", text)])));
    const parts = [list];
    if (detail.reason && detail.reason !== detail.verdict) parts.push(node("p", detail.reason));
    if (detail.seeds.length) {
      const known = detail.seeds.some(([, , run]) => table.runs[run]);
      const about = (run) => (known ? Object.keys(FACTS).map((name) => (table.runs[run] || {})[name] || "") : []);
      const lines = detail.seeds.map(([seed, value, run]) => [seed, value, ...about(run), run]);
      const cells = (values) => node("tr", "", values.map((value) => node("td", value)));
      const shown = [OF_SEED.seed, ["value", detail.says], ...(known ? Object.values(FACTS) : []), OF_SEED.run];
      const made = node("table", "", [
        node("thead", "", [node("tr", "", shown.map(([name, says]) => node("th", name, [], { title: says })))]),
        node("tbody", "", lines.map(cells)),
      ], { className: "plain" });
      const box = node("div", "", [made], { className: "box", tabIndex: 0, role: "region", ariaLabel: "Runs" });
      parts.push(box, node("p", shown.map(([name, says]) => `${name}: ${says}`).join("; "), [], { className: "columns" }));
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

  $("papers").addEventListener("click", (event) => {
    const chosen = Tables.cellOf(event.target);
    if (!chosen) return;
    Tables.focusOn(chosen);
    show(Tables.of(chosen), chosen.dataset.cell.split("-").map(Number));
  });
  $("pick").addEventListener("click", () => { Compare.toggle(open.table, open.key); picked(); });
  $("copy-command").addEventListener("click", () => copy($("command").textContent, $("copied"), $("command")));
  $("copy-link").addEventListener("click", () => copy(Address.link({ cell: [open.table, open.key] }), $("copied"), null));
  for (const name of ["lines", "sets", "order", "cell-across"]) $(name).addEventListener("change", figures);
  dialog.addEventListener("close", () => {
    const back = button();
    open = null;
    Address.keep({ cell: null });
    back.focus();
  });

  return { show };
})();
