// The page as a whole: what is chosen, which view is shown, dark or light.

const tabs = [
  { id: "flame", view: "graph", show: () => graph.turn(true) },
  { id: "icicle", view: "graph", show: () => graph.turn(false) },
  { id: "tree", view: "tree", show: () => tree.update() },
  { id: "functions", view: "functions", show: () => (profile.difference ? differences : table).update() },
  { id: "lines", view: "lines", show: () => sourceLines.update() },
];
let tab = tabs[0];

function showTab(next) {
  tab = next;
  for (const other of tabs) {
    const button = element(`tab-${other.id}`);
    button.setAttribute("aria-selected", other === tab);
    button.tabIndex = other === tab ? 0 : -1;
    element(`view-${other.view}`).hidden = other.view !== tab.view;
  }
  tab.show();
}

function showFound() {
  element("found").textContent = search.isOn ? `${percent(search.samples)} of samples` : "";
}

/** Shows what is chosen now. */
function changed() {
  const seconds = (span) => ((span * profile.time.width) / 1e9).toFixed(3);
  element("thread").value = chosen.thread;
  element("from").value = seconds(chosen.from);
  element("to").value = seconds(chosen.to);
  choose();
  look();
  showFound();
  element("shortened").hidden = view.shortened === 0;
  element("shortened").textContent = `Of what is chosen, ${counted(view.shortened)} (${percent(view.shortened)}) with a part of the stack: ` +
    "[not kept by time] stands for the rest.";
  times.draw();
  if (tab.view === "graph") graph.update();
  else tab.show();
}

/** Looks for a text. */
function find(text) {
  element("search").value = text;
  chosen.text = text;
  look();
  showFound();
  if (tab.view === "graph") graph.draw();
  else tab.show();
}

element("title").textContent = profile.title;
document.title = `${profile.title} - unwind report`;
element("summary").textContent = profile.summary;
element("ledger").textContent = profile.notes +
  (profile.time.left_out > 0 ? `not in the time line: ${counted(profile.time.left_out)}\n` : "") +
  (profile.time.shortened > 0 ? `with a part of their stacks if a thread or a time is chosen: ${counted(profile.time.shortened)}\n` : "");

{
  const all = profile.found.reduce((sum, way) => sum + way.frames, 0) - profile.found.at(-1).frames;
  profile.found.forEach((way, at) => {
    const item = make("li");
    const share = at === profile.found.length - 1 || all === 0 ? "" : `${((100 * way.frames) / all).toFixed(1)} %`;
    item.append(make("i", `found-${at}`), make("span", "", way.label), make("b", "", share));
    item.hidden = way.frames === 0;
    element("legend").append(item);
  });
  const everyone = make("option", "", "all");
  everyone.value = -1;
  element("thread").append(everyone, ...times.order.slice(0, 1000).map((thread) => {
    const option = make("option", "", `${times.label(thread)} (${counted(times.sums[thread])})`);
    option.value = thread;
    return option;
  }));
}

if (profile.difference) {
  document.body.className = "difference";
  element("legend-title").textContent = "What differs";
  element("function-table").hidden = true;
  element("differences").hidden = false;
  element("tab-lines").hidden = true;
  for (const id of ["thread", "from", "to"]) element(id).parentElement.hidden = true;
  const sides = [Float64Array.from(profile.difference.own_before), profile.own];
  const side = element("side");
  side.hidden = false;
  side.addEventListener("click", () => {
    const isBefore = profile.own === sides[1];
    side.setAttribute("aria-pressed", isBefore);
    profile.own = sides[isBefore ? 0 : 1];
    changed();
  });
}

for (const entry of tabs) element(`tab-${entry.id}`).addEventListener("click", () => showTab(entry));
element("tabs").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined) return;
  const seen = tabs.filter((entry) => !element(`tab-${entry.id}`).hidden);
  showTab(seen[(seen.indexOf(tab) + by + seen.length) % seen.length]);
  element(`tab-${tab.id}`).focus();
});

let typing = 0;
element("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => find(event.target.value), 120);
});
element("search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") find("");
  if (event.key === "Enter") find(event.target.value);
});
element("thread").addEventListener("change", (event) => {
  chosen.thread = Number(event.target.value);
  changed();
});
function chooseSpan() {
  const spans = (id) => (Number(element(id).value) * 1e9) / profile.time.width;
  const last = Math.max(profile.time.spans - 1, 0);
  chosen.from = Math.min(Math.max(Math.floor(spans("from")), 0), last);
  chosen.to = Math.min(Math.max(Math.ceil(spans("to") - 1e-6), chosen.from + 1), profile.time.spans);
  changed();
}
element("from").addEventListener("change", chooseSpan);
element("to").addEventListener("change", chooseSpan);
element("all").addEventListener("click", () => {
  Object.assign(chosen, { thread: -1, from: 0, to: profile.time.spans });
  changed();
  graph.show(-1);
});
const darkness = matchMedia("(prefers-color-scheme: dark)");
element("theme").addEventListener("click", () => {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme ? dataset.theme === "dark" : darkness.matches;
  dataset.theme = isDark ? "light" : "dark";
  graph.recolour();
  times.draw();
});
darkness.addEventListener("change", () => { graph.recolour(); times.draw(); });
document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    element("search").focus();
  }
});
new ResizeObserver(() => {
  times.draw();
  if (tab.view === "graph") graph.update();
}).observe(element("times").parentElement);

// The address can say what to show: #view=tree&search=malloc
const asked = new URLSearchParams(location.hash.slice(1));
await pause();
showTab(tabs.find((entry) => entry.id === asked.get("view") && !element(`tab-${entry.id}`).hidden) || tabs[0]);
await pause();
changed();
if (asked.has("search")) find(asked.get("search"));
document.body.removeAttribute("aria-busy");
