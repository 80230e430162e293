// Live updates, keyboard and selection. Every page works without this file.
"use strict";

const root = document.body.dataset.root;
const live = document.querySelector(".live");
const pause = document.querySelector("#live");
let source = null;
let paused = false;
let waiting = null; // a page that arrived while somebody selects or types

// ------------------------------------------------------------------ relative times

function coarse(seconds) {
  if (seconds < 1) return "< 1 s";
  for (const [unit, name] of [[86400 * 2, "d"], [3600, "h"], [60, "min"], [1, "s"]])
    if (seconds >= unit) return `${Math.round(seconds / (name === "d" ? 86400 : unit))} ${name}`;
  return "< 1 s";
}

function tick() {
  for (const time of document.querySelectorAll("time.ago, time.since")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const text = time.className === "since" ? coarse(seconds)
      : seconds < -0.5 ? `in ${coarse(-seconds)}` : `${coarse(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// ------------------------------------------------------------------ live updates

// Change `old` into `fresh` in place: focus, open details, scroll positions and checked boxes stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !(name === "open" || name === "hidden")) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes])
    if (old.getAttribute(name) !== value && !(name === "hidden" && !old.hasAttribute("hidden"))) old.setAttribute(name, value);
  if (old.nodeName === "INPUT" || old.nodeName === "TEXTAREA") return;
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  for (let i = 0; i < Math.max(before.length, after.length); i++) {
    if (!after[i]) before[i].remove();
    else if (!before[i]) old.append(after[i]);
    else morph(before[i], after[i]);
  }
}

function busy() {
  const active = document.activeElement;
  return Boolean(document.querySelector("tbody :checked, [popover]:popover-open, .inline[open]")) ||
    (active && active.matches("main input:not([type=checkbox]), main textarea, main select"));
}

function show(html) {
  if (busy()) {
    waiting = html;
    say("Waiting", "is-paused");
    return;
  }
  waiting = null;
  const fresh = new DOMParser().parseFromString(html, "text/html");
  morph(document.querySelector("#main"), fresh.querySelector("#main"));
  morph(document.querySelector(".nav"), fresh.querySelector(".nav"));
  if (document.title !== fresh.title) document.title = fresh.title;
  unhide();
  say("Live", "");
}

function say(text, kind) {
  if (live.textContent !== text) live.textContent = text;
  live.className = `live push ${kind}`;
}

function connect() {
  if (source || paused || document.hidden) return;
  source = new EventSource(`${root}/live?at=${encodeURIComponent(location.pathname + location.search)}`);
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.addEventListener("lost", (event) => say(JSON.parse(event.data), "is-lost"));
  source.onopen = () => say("Live", "");
  source.onerror = () => {
    say("Reconnecting", "is-lost");
    if (source.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(poll, 5000);
    }
  };
}

async function poll() {
  if (source || paused || document.hidden) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) show(await answer.text());
  } catch {
    say("The dashboard does not answer", "is-lost");
  }
  setTimeout(poll, 5000);
}

function disconnect() {
  if (source) source.close();
  source = null;
}

function toggle() {
  paused = !paused;
  if (paused) {
    disconnect();
    say("Paused", "is-paused");
  } else connect();
  pause.setAttribute("aria-label", paused ? "Resume live updates" : "Pause live updates");
}

// ------------------------------------------------------------------ rows and selection

const boxes = () => [...document.querySelectorAll("tbody input[name=id]")];
const rows = () => [...document.querySelectorAll("tbody tr[data-href]")];
let last = null;

function picked() {
  const chosen = boxes().filter((box) => box.checked);
  for (const place of document.querySelectorAll(".picked")) place.textContent = `${chosen.length} selected`;
  const all = document.querySelector("input.all");
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === boxes().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
  if (!chosen.length && waiting) show(waiting);
}

function pick(box, range) {
  const all = boxes();
  if (range && last && all.includes(last)) {
    const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
    for (const one of all.slice(from, to + 1)) one.checked = box.checked;
  }
  last = box;
  picked();
}

function current() {
  return document.querySelector("tr.is-current");
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = Math.min(all.length - 1, Math.max(0, all.indexOf(current()) + step));
  for (const row of all) row.classList.toggle("is-current", row === all[at]);
  const link = all[at].querySelector("a");
  if (link) link.focus();
  all[at].scrollIntoView({ block: "nearest" });
}

document.addEventListener("click", (event) => {
  const box = event.target.closest("tbody input[name=id]");
  if (box) return pick(box, event.shiftKey);
  if (event.target.closest("input.all")) {
    for (const one of boxes()) one.checked = event.target.checked;
    return picked();
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard.writeText(copy.dataset.copy);
  const word = event.target.closest("[data-word]");
  if (word) take(word.dataset.word);
});
document.addEventListener("reset", () => setTimeout(picked));
document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

function take(word) {
  const input = document.querySelector(".query input");
  input.value = `${input.value.replace(/\S*$/, "")}${word}`;
  input.focus();
}

for (const pop of document.querySelectorAll(".pop"))
  pop.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus in the query

// ------------------------------------------------------------------ keyboard

let chord = 0;

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    for (const box of boxes()) box.checked = false;
    return picked();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (Date.now() - chord < 1200) {
    chord = 0;
    const link = document.querySelector(`.nav [data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  const keys = {
    "/": () => document.querySelector(".query input, .filters input")?.focus(),
    "?": () => document.querySelector("#keys").togglePopover(),
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const box = current()?.querySelector("input[name=id]");
      if (box) { box.checked = !box.checked; pick(box, false); }
    },
    X: () => {
      const box = current()?.querySelector("input[name=id]");
      if (box) { box.checked = true; pick(box, true); }
    },
    r: () => press("r"),
    c: () => press("c"),
    g: () => { chord = Date.now(); },
    ".": toggle,
    t: () => {
      const themes = [...document.querySelectorAll("[name=theme]")];
      const at = themes.findIndex((one) => one.getAttribute("aria-pressed") === "true");
      themes[(at + 1) % themes.length].click();
    },
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

function press(key) {
  const bar = document.querySelector(".selbar");
  const shown = bar && getComputedStyle(bar).display !== "none";
  const button = document.querySelector(shown ? `.selbar [data-key="${key}"]` : `.head [data-key="${key}"]`);
  if (button) button.click();
}

// ------------------------------------------------------------------ start

function unhide() {
  for (const one of document.querySelectorAll("[data-copy], input.all")) one.hidden = false;
}

live.hidden = pause.hidden = false;
pause.addEventListener("click", toggle);
unhide();
setInterval(tick, 1000);
connect();
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
document.addEventListener("focusout", () => setTimeout(() => waiting && show(waiting), 200));
