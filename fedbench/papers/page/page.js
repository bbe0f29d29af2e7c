"use strict";
// Colours, dialogs that close, and what the address asks for when the page opens.
(() => {
  const stored = { get: () => { try { return localStorage.getItem("fedbench-theme") || ""; } catch { return ""; } },
    set: (value) => { try { localStorage.setItem("fedbench-theme", value); } catch { /* a page from disk may have no storage */ } } };

  function paint(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }

  $("theme").addEventListener("change", (event) => { stored.set(event.target.value); paint(event.target.value); });

  for (const dialog of all("dialog")) {
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  async function restore() {
    const part = Address.named();
    if (part) {
      if (part.dataset.folder) await Tables.open(part.dataset.folder);
      for (let outer = part.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
      part.scrollIntoView();
      return;
    }
    const asked = await Address.read();
    Compare.set(asked.runs);
    if (asked.comparing) await Compare.show();
    if (asked.cell) await CellDialog.show(...asked.cell);
    document.documentElement.dataset.ready = "";
  }

  addEventListener("hashchange", restore);
  $("theme").value = stored.get();
  paint($("theme").value);
  restore();
})();
