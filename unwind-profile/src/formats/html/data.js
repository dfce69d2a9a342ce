// The profile, and what it comes to for the chosen thread and span of time.

const element = (id) => document.getElementById(id);

/** Lets the browser draw and listen if it could not for a while: work is done in such pieces. */
const pause = (() => {
  const { port1, port2 } = new MessageChannel();
  let goOn = () => {};
  port1.onmessage = () => { begun = performance.now(); goOn(); };
  let begun = performance.now();
  return () => (performance.now() - begun < 20 ? undefined : new Promise((done) => { goOn = done; port2.postMessage(0); }));
})();
/** How often loops over nodes and cells ask whether to pause: at each number without these bits. */
const PIECE = (1 << 14) - 1;

/** A column of numbers, of which the page has parts. */
async function column(name, Type) {
  const parts = [...document.querySelectorAll(`script[data-column="${name}"]`)];
  const lists = [];
  let size = 0;
  for (const part of parts) {
    lists.push(Type.from(JSON.parse(part.textContent)));
    size += lists.at(-1).length;
    part.remove();
    await pause();
  }
  const whole = new Type(size);
  let at = 0;
  for (const list of lists) {
    whole.set(list, at);
    at += list.length;
  }
  await pause();
  return whole;
}

/** The data of the page, its columns as typed arrays. */
const profile = await (async () => {
  const data = JSON.parse(element("data").textContent);
  await pause();
  const frame = await column("nodes.frame", Uint32Array);
  return {
    ...data,
    names: data.frames.map((parts) => parts[0]),
    files: data.frames.map((parts) => parts[1]),
    isFunction: data.frames.map((parts) => parts[2] === 1),
    frame, size: frame.length,
    caller: await column("nodes.caller", Uint32Array),
    own: await column("nodes.own", Float64Array),
    foundBy: await column("nodes.found", Uint8Array),
    cell: {
      thread: await column("cells.thread", Uint32Array), span: await column("cells.span", Uint32Array),
      node: await column("cells.node", Uint32Array), count: await column("cells.count", Uint32Array),
    },
  };
})();

const isRoot = (node) => profile.caller[node] === node;

/** Adds what is at each node to its callers. Callers come before what they call. */
function withCallees(own) {
  const total = Float64Array.from(own);
  for (let node = profile.size - 1; node >= 0; node -= 1) {
    if (!isRoot(node)) total[profile.caller[node]] += total[node];
  }
  return total;
}

/** What each node calls, that with most samples first; under `size` the roots. */
const callees = await (async () => {
  const { size, caller } = profile;
  const total = withCallees(profile.own);
  await pause();
  const first = new Uint32Array(size + 2);
  const parent = (node) => (isRoot(node) ? size : caller[node]);
  for (let node = 0; node < size; node += 1) {
    first[parent(node) + 1] += 1;
    if ((node & PIECE) === 0) await pause();
  }
  for (let at = 0; at <= size; at += 1) first[at + 1] += first[at];
  const next = first.slice();
  const list = new Uint32Array(size);
  for (let node = 0; node < size; node += 1) {
    const at = parent(node);
    list[next[at]] = node;
    next[at] += 1;
    if ((node & PIECE) === 0) await pause();
  }
  for (let at = 0; at <= size; at += 1) {
    if ((at & PIECE) === 0) await pause();
    if (first[at + 1] - first[at] > 1) {
      list.subarray(first[at], first[at + 1]).sort((a, b) => total[b] - total[a] || a - b);
    }
  }
  return { of: (node) => list.subarray(first[node], first[node + 1]), roots: () => list.subarray(first[size], first[size + 1]) };
})();

/** Whether no caller of a node is of the same function, so that its samples count once. */
const isOutermost = await (async () => {
  const result = new Uint8Array(profile.size);
  const onPath = new Uint32Array(profile.names.length);
  const toDo = [...callees.roots()];
  let step = 0;
  while (toDo.length > 0) {
    step += 1;
    if ((step & PIECE) === 0) await pause();
    const node = toDo.pop();
    if (node < 0) {
      onPath[profile.frame[-1 - node]] -= 1;
      continue;
    }
    const frame = profile.frame[node];
    if (onPath[frame] === 0) result[node] = 1;
    onPath[frame] += 1;
    toDo.push(-1 - node);
    for (const callee of callees.of(node)) toDo.push(callee);
  }
  return result;
})();

await pause();

/** What is chosen: a thread or -1, spans from `from` up to `to`, a text to look for. */
const chosen = { thread: -1, from: 0, to: profile.time.spans, text: "" };

/** The samples of what is chosen: of each node by itself, and with what it calls. */
const view = { own: profile.own, total: withCallees(profile.own), all: 0, shortened: 0 };

function choose() {
  const { cell, time } = profile;
  const isAll = chosen.thread < 0 && chosen.from <= 0 && chosen.to >= time.spans;
  if (isAll) {
    view.own = profile.own;
  } else {
    view.own = new Float64Array(profile.size);
    for (let at = 0; at < cell.node.length; at += 1) {
      const span = cell.span[at];
      if (span < chosen.from || span >= chosen.to) continue;
      if (chosen.thread >= 0 && cell.thread[at] !== chosen.thread) continue;
      view.own[cell.node[at]] += cell.count[at];
    }
  }
  view.total = withCallees(view.own);
  view.all = 0;
  for (const root of callees.roots()) view.all += view.total[root];
  // Nodes that stand for frames which are not kept by time come after all others.
  view.shortened = 0;
  for (let node = time.whole_nodes; node < profile.size; node += 1) view.shortened += view.own[node];
}

/** The functions: samples in each by itself, and anywhere in a stack. */
function functions() {
  const self = new Float64Array(profile.names.length);
  const total = new Float64Array(profile.names.length);
  for (let node = 0; node < profile.size; node += 1) {
    const frame = profile.frame[node];
    self[frame] += view.own[node];
    if (isOutermost[node]) total[frame] += view.total[node];
  }
  return { self, total };
}

/** The frames that are looked for, and the samples with one of them in their stack. */
const search = { isHit: new Uint8Array(profile.names.length), samples: 0, isOn: false };
const lowerNames = profile.names.map((name) => name.toLowerCase());

function look() {
  const text = chosen.text.toLowerCase();
  search.isOn = text !== "";
  search.samples = 0;
  search.isHit.fill(0);
  if (!search.isOn) return;
  for (let frame = 0; frame < lowerNames.length; frame += 1) {
    if (lowerNames[frame].includes(text)) search.isHit[frame] = 1;
  }
  const under = new Uint8Array(profile.size);
  for (let node = 0; node < profile.size; node += 1) {
    const above = isRoot(node) ? 0 : under[profile.caller[node]];
    const isHit = search.isHit[profile.frame[node]];
    if (isHit && !above) search.samples += view.total[node];
    under[node] = above | isHit;
  }
}

const percent = (count) => `${(view.all > 0 ? (100 * count) / view.all : 0).toFixed(1)} %`;
const counted = (count) => `${count.toLocaleString("en")} ${count === 1 ? "sample" : "samples"}`;

/** A node in words. */
function inWords(node) {
  const frame = profile.frame[node];
  const file = profile.files[frame];
  const how = profile.found[profile.foundBy[node]].label;
  return `${profile.names[frame]}${file ? ` (${file})` : ""}: ${counted(view.total[node])}, ${percent(view.total[node])}; self ${percent(view.own[node])}; ${how}${profile.difference ? differences.inWords(frame) : ""}`;
}
