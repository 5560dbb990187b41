"use strict";
// Shortcuts, filters without a button, live pages, unfolded prints. Without a script, all works but these.
const ITEMS = "main .item, main .message, main .call";
const help = document.getElementById("help");
const keys = document.getElementById("keys");
try { keys.checked = localStorage.getItem("keys") !== "off"; } catch { /* storage is blocked */ }
keys.addEventListener("change", () => {
  try { localStorage.setItem("keys", keys.checked ? "on" : "off"); } catch { /* for this page alone */ }
});

function move(step) {
  const items = [...document.querySelectorAll(ITEMS)].filter((one) => one.getClientRects().length);
  if (!items.length) return;
  let at = items.indexOf(document.activeElement.closest(ITEMS));
  if (at < 0) at = step > 0 ? -1 : items.length;
  const item = items[Math.min(Math.max(at + step, 0), items.length - 1)];
  item.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

function follow(rel) {
  document.querySelector(`a[rel~="${rel}"]`)?.click();
}

const ACTIONS = {
  j: () => move(1), k: () => move(-1),
  n: () => follow("next"), p: () => follow("prev"), f: () => follow("failed"), u: () => follow("up"),
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => (help.open ? help.close() : help.showModal()),
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]):not([type=radio]), select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  const action = ACTIONS[event.key];
  if (!action || typing || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (help.open && event.key !== "?") return;
  if (!keys.checked && event.key !== "?") return;
  event.preventDefault();
  action();
});
for (const button of document.querySelectorAll("[data-help]")) {
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
}

for (const form of document.querySelectorAll("[data-filters]")) {
  form.querySelector("button").hidden = true; // Enter sends it still
  form.addEventListener("change", (event) => event.target.matches("select") && form.requestSubmit());
}
for (const form of document.querySelectorAll("[data-pick]")) {
  const ticked = () => { form.querySelector("button").disabled = form.querySelectorAll(":checked").length !== 2; };
  form.addEventListener("change", ticked);
  addEventListener("pageshow", ticked);
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));

async function refresh() {
  let seconds = Number(document.body.dataset.refresh);
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const held = document.activeElement?.closest("a");
    const picked = [...document.querySelectorAll("[name=pick]:checked")].map((one) => one.value);
    for (const part of document.querySelectorAll("[data-live]")) {
      const made = fresh.getElementById(part.id);
      if (made && made.innerHTML !== part.innerHTML) part.innerHTML = made.innerHTML;
    }
    for (const box of document.querySelectorAll("[name=pick]")) box.checked = picked.includes(box.value);
    if (held && document.activeElement === document.body) {
      const alike = [...document.links].filter((one) => one.text === held.text && one.className === held.className);
      (alike.find((one) => one.href === held.href) ?? alike[0])?.focus({ preventScroll: true });
    }
    seconds = Number(fresh.body.dataset.refresh);
  } catch { /* the server is busy or gone: try again */ }
  if (seconds) setTimeout(refresh, 1000 * seconds);
}
if (document.body.dataset.refresh) setTimeout(refresh, 1000 * Number(document.body.dataset.refresh));
