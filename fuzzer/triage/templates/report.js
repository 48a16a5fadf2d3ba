"use strict";
// The filters live in the address, so that a filtered view can be linked to; `id=` names one crash and opens it.
const form = document.getElementById("filters");
const crashes = Array.from(document.querySelectorAll(".crash"));
const names = Array.from(form.querySelectorAll("select"), field => field.name);
function show() {
  const wanted = Object.fromEntries(new FormData(form));
  let shown = 0;
  for (const crash of crashes) {
    const fits = names.every(name => !wanted[name] || crash.dataset[name] === wanted[name]);
    const holds = !wanted.text || crash.textContent.toLowerCase().includes(wanted.text.toLowerCase());
    crash.hidden = !(fits && holds);
    shown += crash.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = `${shown} of ${crashes.length} crashes`;
}
function fromAddress(scroll) {
  const text = location.hash.slice(1);
  if (text && !text.includes("=")) return;  // a place on the page: its filters stay as they are
  const given = new URLSearchParams(text);
  for (const field of form.elements) {
    if (!field.name) continue;
    const value = given.get(field.name) || "";
    const options = field.options ? Array.from(field.options, option => option.value) : [value];
    field.value = options.includes(value) ? value : "";
  }
  show();
  if (scroll && [...given.keys()].length) document.getElementById("crashes").scrollIntoView();
  const one = crashes.find(crash => crash.dataset.id === given.get("id"));
  if (one) {
    one.open = true;
    one.scrollIntoView();
  }
}
function toAddress() {
  const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", `#${given}`);
  show();
}
form.addEventListener("input", toAddress);
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("reset", () => setTimeout(toAddress));
window.addEventListener("hashchange", () => fromAddress(true));
fromAddress(false);
