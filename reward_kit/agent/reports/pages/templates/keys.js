"use strict";
// Keys, pages that stay up to date while an evaluation runs, and unfolded prints. Without a script all works but these.
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

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));

async function refresh() {
  let seconds = Number(document.body.dataset.refresh);
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const held = document.activeElement?.getAttribute("href");
    for (const part of document.querySelectorAll("[data-live]")) {
      const made = fresh.getElementById(part.id);
      if (made && made.innerHTML !== part.innerHTML) part.innerHTML = made.innerHTML;
    }
    if (held && document.activeElement === document.body) {
      [...document.links].find((one) => one.getAttribute("href") === held)?.focus({ preventScroll: true });
    }
    seconds = Number(fresh.body.dataset.refresh);
  } catch { /* the server is busy or gone: try again */ }
  if (seconds) setTimeout(refresh, 1000 * seconds);
}
if (document.body.dataset.refresh) setTimeout(refresh, 1000 * Number(document.body.dataset.refresh));
