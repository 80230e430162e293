// Live updates, keyboard, completion and selection. Every page works without this file.
"use strict";

const root = document.body.dataset.root;
const live = document.querySelector(".live");
const pause = document.querySelector("#live");
const $ = (selector) => document.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
let source = null;
let paused = false;
let updates = 0;
let waiting = null; // an update that arrived while the visitor selects or types

// ------------------------------------------------------------------ relative times

function coarse(seconds) {
  if (seconds < 1) return "< 1 s";
  for (const [unit, name] of [[86400 * 2, "d"], [3600, "h"], [60, "min"], [1, "s"]])
    if (seconds >= unit) return `${Math.round(seconds / (name === "d" ? 86400 : unit))} ${name}`;
  return "< 1 s";
}

function tick() {
  for (const time of $$("time.ago, time.since")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const text = time.className === "since" ? coarse(seconds)
      : seconds < -0.5 ? `in ${coarse(-seconds)}` : `${coarse(seconds)} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// ------------------------------------------------------------------ live updates

const OWN = ["open", "hidden"]; // attributes that belong to the visitor, not to the server
const nameOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.getAttribute("id") || node.dataset.href)) || "";

// Change `old` into `fresh` in place: focus, open details, scroll positions, checked boxes and the cursor stay.
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
  const cursor = old.classList.contains("is-current");
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !OWN.includes(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes])
    if (!OWN.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (cursor) old.classList.add("is-current");
  if (old.nodeName === "INPUT" || old.nodeName === "TEXTAREA") return;
  children(old, [...fresh.childNodes]);
}

// Rows are matched by what they are, everything else by its place.
function children(old, after) {
  const alike = (nodes) => new Set(nodes.map(nameOf).filter(Boolean)).size < nodes.filter(nameOf).length;
  const keyOf = alike([...old.childNodes]) || alike(after) ? () => "" : nameOf; // two rows of one name: by their place
  const keyed = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  const wanted = new Set(after.map(keyOf).filter(Boolean));
  for (const [key, node] of keyed) if (!wanted.has(key)) node.remove();
  let at = old.firstChild;
  for (const node of after) {
    const known = keyed.get(keyOf(node));
    if (known) {
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      morph(known, node);
    } else if (at && !keyOf(at) && !keyOf(node)) {
      const next = at.nextSibling;
      morph(at, node);
      at = next;
    } else old.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function busy() {
  if ($("tbody :checked")) return "while you select";
  if ($("[popover]:popover-open, .inline[open]")) return "while this is open";
  const active = document.activeElement;
  return active && active.matches("main input:not([type=checkbox]), main textarea, main select") ? "while you type" : "";
}

function show(html) {
  const why = busy();
  const fresh = new DOMParser().parseFromString(html, "text/html");
  if (why) {
    waiting = html;
    const known = new Set(rows().map((row) => row.dataset.href));
    const added = [...fresh.querySelectorAll("tbody tr[data-href]")].filter((row) => !known.has(row.dataset.href)).length;
    say(`Paused ${why}${added ? `, ${added} new` : ""}`, "is-paused");
    return;
  }
  waiting = null;
  morph($("#main"), fresh.querySelector("#main"));
  morph($(".nav"), fresh.querySelector(".nav"));
  if (document.title !== fresh.title) document.title = fresh.title;
  unhide();
  say("Live", "");
  updates += 1;
  document.body.dataset.updates = updates;
}

function catchUp() {
  if (waiting && !busy()) show(waiting);
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
  source.onopen = () => { if (!busy()) say("Live", ""); };
  source.onerror = () => {
    say("Reconnecting", "is-lost");
    if (source && source.readyState === EventSource.CLOSED) {
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
  const label = `${paused ? "Resume" : "Pause"} live updates`;
  pause.setAttribute("aria-label", label);
  pause.title = `${label} ( . )`;
}

function look() {
  if (!document.hidden) return connect();
  disconnect();
  say("Paused in the background", "is-paused");
}

// ------------------------------------------------------------------ rows and selection

const boxes = () => $$("tbody input[name=id]");
const rows = () => $$("tbody tr[data-href]");
const current = () => $("tr.is-current");
let last = null;

function picked() {
  const chosen = boxes().filter((box) => box.checked);
  const matching = $("input[name=matching]");
  const everything = matching && matching.checked;
  for (const place of $$(".picked")) place.textContent = everything ? "All selected" : `${chosen.length} selected`;
  const all = $("input.all");
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === boxes().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
  if (!chosen.length) {
    if (matching) matching.checked = false;
    catchUp();
  }
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

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = Math.min(all.length - 1, Math.max(0, all.indexOf(current()) + step));
  for (const row of all) row.classList.toggle("is-current", row === all[at]);
  const link = all[at].querySelector("a");
  if (link) link.focus();
  all[at].scrollIntoView({ block: "nearest" });
}

function mark(range) {
  const box = current()?.querySelector("input[name=id]");
  if (!box) return;
  box.checked = range || !box.checked;
  pick(box, range);
}

document.addEventListener("click", (event) => {
  const box = event.target.closest("tbody input[name=id]");
  if (box) return pick(box, event.shiftKey);
  if (event.target.closest("input[name=matching]")) return picked();
  if (event.target.closest("input.all")) {
    for (const one of boxes()) one.checked = event.target.checked;
    return picked();
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) copied(copy);
  if (event.target.closest(".toast-close")) $(".toast").remove();
  const word = event.target.closest("[data-word]");
  if (word) take(word);
});
document.addEventListener("reset", () => setTimeout(picked));
document.addEventListener("toggle", () => setTimeout(catchUp), true);

async function copied(button) {
  await navigator.clipboard.writeText(button.dataset.copy);
  button.classList.add("is-done");
  setTimeout(() => button.classList.remove("is-done"), 1500);
}

// ------------------------------------------------------------------ completion of the query

const query = $(".query input");
const offers = $$(".pop [data-word]");
let chosen = -1;

function shown() {
  return offers.filter((one) => !one.hidden);
}

function offer() {
  const word = query.value.slice(0, query.selectionStart).match(/\S*$/)[0].replace(/^-/, "");
  let count = 0;
  for (const one of offers) {
    const text = one.dataset.word;
    const fits = word ? text.startsWith(word) && text !== word : text.endsWith(":");
    one.hidden = !fits || ++count > 10;
  }
  point(-1);
  $(".pop").classList.toggle("is-empty", count === 0);
}

function point(at) {
  const all = shown();
  chosen = all.length ? Math.max(-1, Math.min(at, all.length - 1)) : -1;
  offers.forEach((one) => one.classList.toggle("is-current", one === all[chosen]));
  offers.forEach((one) => one.setAttribute("aria-selected", String(one === all[chosen])));
  if (chosen < 0) query.removeAttribute("aria-activedescendant");
  else query.setAttribute("aria-activedescendant", all[chosen].id);
}

function take(one) {
  const end = query.selectionStart;
  const start = query.value.slice(0, end).replace(/[^\s-]\S*$/, "");
  const word = one.dataset.word;
  query.value = start + word + (word.endsWith(":") ? "" : " ") + query.value.slice(end).trimStart();
  query.focus();
  offer();
}

if (query) {
  query.addEventListener("input", offer);
  query.addEventListener("focus", offer);
  query.addEventListener("keydown", (event) => {
    const all = shown();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      point(chosen + (event.key === "ArrowDown" ? 1 : -1));
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) {
      take(all[chosen]);
      event.preventDefault();
    }
  });
  for (const pop of $$(".pop")) pop.addEventListener("mousedown", (event) => event.preventDefault()); // keep the focus
}

// ------------------------------------------------------------------ keyboard

let chord = 0;

const keys = {
  "/": () => $(".query input, .filters input")?.focus(),
  "?": () => $("#keys").togglePopover(),
  j: () => move(1),
  k: () => move(-1),
  x: () => mark(false),
  X: () => mark(true),
  r: () => press("r"),
  c: () => press("c"),
  g: () => { chord = Date.now(); },
  ".": toggle,
  t: () => {
    const themes = $$("[name=theme]");
    const at = themes.findIndex((one) => one.getAttribute("aria-pressed") === "true");
    themes[(at + 1) % themes.length].click();
  },
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    for (const box of boxes()) box.checked = false;
    $(".toast")?.remove();
    return picked();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (Date.now() - chord < 1200) {
    chord = 0;
    const link = $(`.nav [data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    return;
  }
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

function press(key) {
  const bar = $(".selbar");
  const open = bar && getComputedStyle(bar).display !== "none";
  const button = $(open ? `.selbar [data-key="${key}"]` : `.head [data-key="${key}"]`);
  if (button) button.click();
}

// ------------------------------------------------------------------ start

function unhide() {
  for (const one of $$("[data-copy], input.all, .toast-close")) one.hidden = false;
}

live.hidden = pause.hidden = false;
pause.addEventListener("click", toggle);
unhide();
setInterval(tick, 1000);
connect();
document.addEventListener("visibilitychange", look);
document.addEventListener("focusout", () => setTimeout(catchUp, 200));
