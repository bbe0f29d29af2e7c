"use strict";
// Colours, dialogs that close, and what the address asks for when the page opens.
(() => {
  const stored = { get: () => { try { return localStorage.getItem("fedbench-theme") || ""; } catch { return ""; } },
    set: (value) => { try { localStorage.setItem("fedbench-theme", value); } catch { /* a page from disk may have no storage */ } } };

  function redraw() {
    if ($("cell").open) CellDialog.figures();
    if ($("comparison").open) Compare.figures();
  }

  function paint(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    redraw();
  }

  $("theme").addEventListener("change", (event) => { stored.set(event.target.value); paint(event.target.value); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  for (const dialog of all("dialog")) {
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  function restore() {
    const asked = Address.read();
    Grid.restore(asked.filters);
    Compare.set(asked.runs);
    if (asked.comparing) Compare.show();
    if (asked.cell) CellDialog.show(...asked.cell);
  }

  // After an ordinary link the address is that of what is kept again, if anything is.
  addEventListener("hashchange", () => { if (Address.named()) Address.keep({}); else restore(); });

  $("theme").value = stored.get();
  paint($("theme").value);
  restore();
})();
