// Times in the reader's zone, countdowns, and parts of a page that refresh themselves. No page needs any of it.
"use strict";

const PAUSE_MS = 2500; // between two refreshes, however much happens
const SILENT_MS = 40000; // the console says something every 15 s: a line that is silent for longer was cut
// Swedish writes times as the pages do in UTC: 2026-01-31 17:05:09, in the zone of the reader.
const zone = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) element.textContent = zone.format(at);
  }
}

// The server's clock, as this page was made; a wrong clock of this machine does not matter.
const told = document.querySelector('meta[name="now"]');
let made = { server: told ? Date.parse(told.content) : Date.now(), here: performance.now() };

function serverNow() {
  return made.server + (performance.now() - made.here);
}

function left(ms) {
  const total = Math.max(0, Math.floor(ms / 1000));
  const parts = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60, total % 60];
  const names = [" d", " h", " min", " s"];
  const first = parts.findIndex((part) => part > 0);
  if (first < 0) return "0 s";
  return parts.map((part, i) => part + names[i]).slice(first, first + 2).join(" ");
}

function countDown() {
  for (const element of document.querySelectorAll("[data-until]")) {
    const ms = Date.parse(element.dataset.until) - serverNow();
    element.textContent = ms > 0 ? left(ms) : "over";
  }
}

// Parts marked `data-live` (each with an id) are taken from a fresh copy of this page; forms are never inside one.
async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (answer.redirected || answer.status === 401 || answer.status === 403) throw new Error("gone");
  if (!answer.ok) throw new Error(String(answer.status));
  const copy = new DOMParser().parseFromString(await answer.text(), "text/html");
  localTimes(copy);
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = copy.getElementById(part.id);
    if (!fresh || part.contains(document.activeElement) || holdsSelection(part)) continue;
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((one) => one.id));
    for (const one of fresh.querySelectorAll("details[id]")) one.open = one.open || open.has(one.id);
    part.replaceChildren(...fresh.childNodes);
  }
  const now = copy.querySelector('meta[name="now"]');
  if (now) made = { server: Date.parse(now.content), here: performance.now() };
  countDown();
}

function holdsSelection(part) {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && part.contains(selection.anchorNode));
}

// Below, small: that it is live. Above everything, and aloud: that it is not, and why.
function show(trouble) {
  const live = document.getElementById("live");
  const banner = document.getElementById("not-live");
  if (live) {
    live.hidden = false;
    live.textContent = trouble ? " · not live" : " · live";
  }
  if (!banner) return;
  if (trouble) document.getElementById("not-live-why").textContent = trouble;
  banner.hidden = !trouble;
}

function follow() {
  const pulse = document.querySelector('meta[name="pulse"]');
  if (!pulse || !document.querySelector("[data-live]")) return;
  let word = pulse.content; // what this page is as of
  let due = 0;
  let timer = null;
  let heard = performance.now();
  let source = null;
  let behind = false; // something happened that this page does not show yet

  async function catchUp(news) {
    due = Date.now() + PAUSE_MS;
    try {
      await refresh();
      word = news;
      behind = false;
      show("");
    } catch (error) {
      const gone = error.message === "gone";
      show(gone ? "you are no longer signed in, or not allowed to see it." : "the console could not show it anew.");
      if (!gone) later(news); // it is behind, whatever the line says
    }
  }

  function later(news) {
    behind = true;
    clearTimeout(timer);
    timer = setTimeout(() => { timer = null; catchUp(news); }, Math.max(0, due - Date.now()));
  }

  function open() {
    source = new EventSource(`/events?after=${encodeURIComponent(word)}`);
    const on = (name, act) => source.addEventListener(name, (event) => { heard = performance.now(); act(event); });
    on("open", () => behind || show(""));
    on("alive", () => behind || show(""));
    on("change", (event) => later(event.data));
    on("enough", () => close("it is open in other windows, and those are live."));
    on("over", () => close("you are no longer signed in."));
    source.onerror = () => show("the console does not answer.");
  }

  function close(why) {
    source.close();
    source = null;
    clearTimeout(timer);
    timer = null;
    show(why);
  }

  function look() {
    if (document.visibilityState !== "visible" || source !== null) return;
    heard = performance.now();
    open();
    later(word);
  }

  addEventListener("focus", look);
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => source && source.close());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  setInterval(() => {
    const silent = performance.now() - heard;
    if (source !== null && silent > SILENT_MS) show(`nothing was heard for ${left(silent)}.`);
  }, 1000);
  open();
}

localTimes(document);
const named = document.getElementById("zone");
if (named) named.textContent = zone.resolvedOptions().timeZone;
countDown();
setInterval(countDown, 1000);
follow();
