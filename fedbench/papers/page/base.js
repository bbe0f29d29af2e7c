"use strict";
// What all parts of the page share. Whatever comes from configs is set as text, never as HTML.
const $ = (id) => document.getElementById(id);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

function node(tag, text = "", children = [], more = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return Object.assign(made, more);
}

// Options of a select: what was chosen before, if it is still there, else `first`.
function options(select, pairs, first) {
  const chosen = select.value || first;
  select.replaceChildren(...pairs.map(([value, text]) => node("option", text, [], { value })));
  const values = pairs.map(([value]) => value);
  if (values.includes(chosen)) select.value = chosen;
  else if (values.includes(first)) select.value = first;
}

const setName = (name) => name.replace("acc_on_", "").replaceAll("_", " ");

// Puts text on the clipboard and says so; where the browser forbids it, `shown` is selected instead.
async function copy(text, said, shown) {
  try {
    await navigator.clipboard.writeText(text);
    said.textContent = "copied";
  } catch {
    if (shown) getSelection().selectAllChildren(shown);
    said.textContent = shown ? "selected; copy it with the keyboard" : "copy the address bar instead";
  }
}
