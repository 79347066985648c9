// Times in the reader's zone, countdowns, and parts of a page that refresh themselves. No page needs any of it.
"use strict";

const PAUSE_MS = 2500; // between two refreshes, however much happens
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
  if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
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

function follow() {
  const pulse = document.querySelector('meta[name="pulse"]');
  if (!pulse || !document.querySelector("[data-live]")) return;
  const live = document.getElementById("live");
  let due = 0;
  let timer = null;
  const source = new EventSource(`/events?after=${encodeURIComponent(pulse.content)}`);
  const show = (words) => {
    if (live) {
      live.hidden = !words;
      live.textContent = words ? ` · ${words}` : "";
    }
  };
  source.onopen = () => show("live");
  source.onerror = () => show("not live: the console does not answer");
  source.addEventListener("change", () => {
    if (timer !== null) return;
    timer = setTimeout(async () => {
      timer = null;
      due = Date.now() + PAUSE_MS;
      try {
        await refresh();
        show("live");
      } catch {
        show("not live: load the page again");
      }
    }, Math.max(0, due - Date.now()));
  });
  addEventListener("pagehide", () => source.close());
}

localTimes(document);
const named = document.getElementById("zone");
if (named) named.textContent = zone.resolvedOptions().timeZone;
countDown();
setInterval(countDown, 1000);
follow();
