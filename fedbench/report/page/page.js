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
    Address.keep({ filters: asked.filters });
    Compare.set(asked.runs);
    if (asked.comparing) Compare.show();
    if (asked.cell) CellDialog.show(...asked.cell);
  }

  // A hash that names a table is an ordinary link; any other is an address of this page.
  const named = () => all("#tables > section, .boards > section").find((section) => `#${section.id}` === location.hash);
  addEventListener("hashchange", () => { if (!named()) restore(); });

  $("theme").value = stored.get();
  paint($("theme").value);
  const link = named() ? location.hash : "";
  restore();
  if (link) history.replaceState(null, "", link);
})();
