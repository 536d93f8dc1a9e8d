// The page: receives server-sent events and shows them. It asks the server for nothing else, except when an operator presses a button.

import { Staircase, element } from "./chart.js";
import { drawTable, keepTables } from "./table.js";

const $ = (id) => document.getElementById(id);
const chart = new Staircase($("chart"), $("legend"));
const TONES = { moving: "good", idle: "good", ended: "good", clock: "good", held: "warn", released: "warn", blocked: "warn" };
const QUESTIONS = {
  hold: () => ["Hold the group? The limit stays where it is until a period is set again. Records before it are still processed.", "Hold"],
  period: (order) => [`Set the period to ${order.period}, for all members, from the next boundary on? This also ends a hold.`, "Set period"],
  release: () => ["Release the group? Every record passes from then on, and partitions are not kept in step any more. This is final for the run.", "Release"],
  isolate: (order) => [`Isolate ${order.member}? It drains, commits and releases its partitions to the other members.`, "Isolate"],
  rejoin: (order) => [`Let ${order.member} take part again?`, "Rejoin"],
};

let source = null;
let group = null; // the name of the group that is shown; "" is the root itself, null the list
let controlToken = null;
let retry = null;
let hiddenSince = null;
let blockedAt = 0; // when a partition blocked last, by performance.now()

// -- the connection ---------------------------------------------------------------------------------------------------------

function connect() {
  clearTimeout(retry);
  source?.close();
  const path = group === null ? "/overview" : `/events?group=${encodeURIComponent(group)}&since=${chart.last}`;
  const mine = source = new EventSource(path);
  const on = (kind, use) => mine.addEventListener(kind, (event) => { if (mine === source) use(JSON.parse(event.data)); });
  mine.onopen = () => say("live", true);
  mine.onerror = () => {
    if (mine !== source) return;
    say("connection lost; trying again", false);
    // Always a new connection, with what is known by now: the browser would ask for the old history again.
    mine.close();
    retry = setTimeout(connect, 1000);
    askForToken();
  };
  on("hello", (hello) => { controlToken = hello.control; $("control").hidden = !controlToken || group === null; });
  on("overview", showOverview);
  on("history", (samples) => chart.add(samples));
  on("sample", (sample) => { chart.skew = sample.t - Date.now(); chart.add([sample]); });
  on("view", showView);
  on("tables", showTables);
}

// A browser does not tell why a stream was refused. The page itself is answered by the way to the login, if the token is wrong:
// the server may have been started again with another one.
async function askForToken() {
  try {
    const answer = await fetch("/", { method: "HEAD", redirect: "manual" });
    if (answer.type === "opaqueredirect") location.assign("/login");
  } catch { /* the server is away */ }
}

function say(text, live) {
  $("connection").textContent = text;
  $("connection").classList.toggle("live", live);
}

function open(name) {
  if (name !== group) {
    chart.clear();
    $("tables").replaceChildren();
    $("blocking").replaceChildren();
    $("blocking").hidden = true;
    $("answer").textContent = "";
  }
  group = name;
  $("overview").hidden = name !== null;
  $("group").hidden = true;
  connect();
}

function route() {
  let name = location.hash.slice(1);
  try { name = decodeURIComponent(name); } catch { /* typed by hand: a % that encodes nothing */ }
  open(name || null);
}

window.addEventListener("hashchange", route);
// A browser allows few connections to one server: a page that nobody sees gives its own back, and catches up later.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenSince);
  if (document.hidden) hiddenSince = setTimeout(() => { source?.close(); source = null; say("paused", false); }, 30000);
  else if (!source) connect();
});

// -- what is shown ------------------------------------------------------------------------------------------------------------

function setText(id, text) {
  $(id).hidden = !text;
  $(id).textContent = text ?? "";
}

function showOverview(overview) {
  if (overview.group) {
    open("");
    return;
  }
  $("where").textContent = overview.where;
  document.title = "aiokcc";
  setText("missing", overview.missing ? `${sentence(overview.missing)} This page waits for it.` : overview.away);
  $("overview").hidden = Boolean(overview.missing);
  if (overview.missing) return;
  drawTable($("overview"), overview.table, "groups", (text, column) => {
    if (column) return text;
    const link = document.createElement("a");
    link.href = `#${encodeURIComponent(text)}`;
    link.textContent = text;
    return link;
  });
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function showView(view) {
  $("where").textContent = view.where;
  $("group").hidden = Boolean(view.missing);
  setText("missing", view.missing ? `${sentence(view.missing)} This page waits for it.` : "");
  if (view.missing) return;
  document.title = `${view.verdict} · ${group || view.where.split("/").at(-1)}`;
  $("verdict").dataset.tone = view.stuck ? "bad" : TONES[view.verdict] ?? "bad";
  const state = view.stuck ? `${view.verdict}: stuck` : view.verdict;
  if ($("state").textContent !== state) $("state").textContent = state; // it is read aloud, and the sentence changes every second
  if ($("why").textContent !== view.why) $("why").textContent = view.why;
  setText("away", view.away);
  $("problems").hidden = !view.problems.length;
  $("problems").replaceChildren(...view.problems.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  pairs($("tiles"), view.tiles);
  $("share").hidden = view.share === null;
  if (view.share !== null) {
    $("share").setAttribute("aria-valuenow", Math.round(view.share * 100));
    $("share").replaceChildren(element("svg", {}, element("rect", { width: `${view.share * 100}%`, height: 6 })));
  }
  chart.blocked = new Set(view.blockers);
  chart.goesOn = !view.away && (view.state === "running" || view.state === "held");
  chart.ask();
  showBlocking(view);
  const known = $("facts");
  known.replaceChildren(...view.facts.flatMap(([name, value]) => [
    Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: value })]));
  showControl(view);
}

// Where each period takes a second or two, somebody blocks most of the time, but not always. Then the last table stays, in grey: it
// says who is slow, and the page does not jump.
function showBlocking(view) {
  const place = $("blocking");
  if (view.blocking) {
    blockedAt = performance.now();
    drawTable(place, view.blocking, "Blocking");
  }
  place.hidden = !view.blocking && (view.state !== "running" || performance.now() - blockedAt > 10000 || !place.firstChild);
  place.classList.toggle("over", !view.blocking);
  if (!view.blocking && place.firstChild) place.querySelector("h2").textContent = "Blocked a moment ago";
}

function pairs(place, tiles) {
  place.replaceChildren(...tiles.map(([name, value, remark]) => {
    const tile = document.createElement("div");
    const dd = Object.assign(document.createElement("dd"), { textContent: value, className: value.length > 12 ? "long" : "" });
    if (remark) dd.append(Object.assign(document.createElement("small"), { textContent: remark }));
    tile.append(Object.assign(document.createElement("dt"), { textContent: name }), dd);
    return tile;
  }));
}

function showTables(tables) {
  const names = tables.map((table) => table.title.replace(/ \(.*/, ""));
  keepTables($("tables"), names);
  for (const [index, table] of tables.entries()) drawTable($("tables"), table, names[index]);
  const partitions = tables.find((table) => table.columns[0] === "partition");
  const member = partitions?.columns.indexOf("member") ?? -1;
  chart.facts = new Map((partitions?.rows ?? []).filter((row) => row[member]).map((row) => [row[0], `on ${row[member]}`]));
}

// -- control ------------------------------------------------------------------------------------------------------------------

function showControl(view) {
  $("control").hidden = !controlToken;
  const over = view.state === "ended" || view.state === "released";
  for (const button of document.querySelectorAll("#control button, #control input, #control select")) button.disabled = over;
  document.querySelector("[data-verb=hold]").disabled = over || view.state === "held";
  const period = document.querySelector("#change-period input");
  if (view.period && !period.value && document.activeElement !== period) period.value = view.period;
  $("member-verbs").hidden = !view.managed;
  const select = document.querySelector("#member-verbs select");
  const wanted = view.members.map(([name, isolated]) => [name, isolated ? `${name} (isolated)` : name]);
  if (JSON.stringify(wanted) !== select.dataset.members) {
    const chosen = select.value;
    select.dataset.members = JSON.stringify(wanted);
    select.replaceChildren(...wanted.map(([value, text]) => new Option(text, value)));
    if (chosen) select.value = chosen;
  }
}

function ask(order) {
  const [question, yes] = QUESTIONS[order.verb](order);
  $("question").textContent = question;
  $("yes").textContent = yes;
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.onclose = () => { if (dialog.returnValue === "yes") send(order); };
  dialog.showModal();
}

async function send(order) {
  const answer = $("answer");
  answer.className = "";
  answer.textContent = "…";
  try {
    const response = await fetch(`/control?group=${encodeURIComponent(group ?? "")}`, {
      method: "POST", headers: { "content-type": "application/json", "x-aiokcc-control": controlToken }, body: JSON.stringify(order) });
    const result = await response.json();
    answer.textContent = result.done ?? sentence(result.error);
    answer.className = result.done ? "" : "failed";
  } catch {
    answer.textContent = "The server does not answer; whether the order was carried out is not known.";
    answer.className = "failed";
  }
}

for (const button of document.querySelectorAll("#control [data-verb]")) {
  button.addEventListener("click", (event) => {
    event.preventDefault();
    const member = document.querySelector("#member-verbs select").value;
    ask({ verb: button.dataset.verb, ...(button.closest("#member-verbs") ? { member } : {}) });
  });
}
$("change-period").addEventListener("submit", (event) => {
  event.preventDefault();
  ask({ verb: "period", period: new FormData(event.target).get("period") });
});
$("windows").addEventListener("change", (event) => { chart.window = Number(event.target.value); chart.ask(); });

route();
