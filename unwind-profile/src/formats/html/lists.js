// The call tree, the functions, and the threads by time.

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const tree = (() => {
  const list = element("tree");
  /** How many callees are shown at a time. */
  const MANY = 200;

  function row(node, level) {
    const made = make("div", "row");
    const frame = profile.frame[node];
    made.setAttribute("role", "treeitem");
    made.setAttribute("aria-level", level);
    made.tabIndex = -1;
    made.append(make("span", "number", percent(view.total[node])), make("span", "number", percent(view.own[node])));
    const twist = make("span", "twist", "");
    twist.style.marginLeft = `${Math.min(level - 1, 200) * 0.8}rem`;
    const isHit = search.isOn && search.isHit[frame] === 1;
    made.append(twist, make("i", `swatch found-${profile.foundBy[node]}`),
      make("span", isHit ? "name hit" : "name", profile.names[frame]), make("span", "file", profile.files[frame]));
    const below = callees.of(node).filter((callee) => view.total[callee] > 0);
    if (below.length > 0) made.setAttribute("aria-expanded", "false");
    twist.textContent = below.length > 0 ? "▸" : "";
    made.entry = { node, level, below, isOpen: false };
    return made;
  }

  /** Rows for some callees after `place`, and one for the rest. */
  function insert(place, nodes, level, from) {
    const part = document.createDocumentFragment();
    nodes.slice(from, from + MANY).forEach((node) => part.append(row(node, level)));
    if (nodes.length > from + MANY) {
      const more = make("div", "row", `… ${nodes.length - from - MANY} more`);
      more.tabIndex = -1;
      more.setAttribute("role", "treeitem");
      more.setAttribute("aria-level", level);
      more.entry = { level, more: () => { insert(more, nodes, level, from + MANY); more.remove(); } };
      part.append(more);
    }
    if (place === null) list.append(part);
    else place.after(part);
  }

  function open(item) {
    const { entry } = item;
    if (entry.more) { const next = item.previousSibling; entry.more(); (next && next.nextSibling || list.firstChild).focus(); return; }
    if (entry.isOpen || entry.below.length === 0) return;
    entry.isOpen = true;
    item.setAttribute("aria-expanded", "true");
    item.querySelector(".twist").textContent = "▾";
    insert(item, entry.below, entry.level + 1, 0);
  }

  function close(item) {
    const { entry } = item;
    if (!entry.isOpen) return;
    entry.isOpen = false;
    item.setAttribute("aria-expanded", "false");
    item.querySelector(".twist").textContent = "▸";
    while (item.nextSibling && item.nextSibling.entry.level > entry.level) item.nextSibling.remove();
  }

  list.addEventListener("click", (event) => {
    const item = event.target.closest("[role=treeitem]");
    if (item === null) return;
    item.focus();
    if (item.entry.isOpen) close(item);
    else open(item);
  });
  list.addEventListener("focusin", (event) => {
    list.querySelectorAll("[tabindex='0']").forEach((other) => { other.tabIndex = -1; });
    event.target.tabIndex = 0;
    if (event.target.entry && event.target.entry.node !== undefined) element("detail").textContent = inWords(event.target.entry.node);
  });
  list.addEventListener("keydown", (event) => {
    const item = event.target;
    if (!item.entry) return;
    const caller = () => {
      let at = item;
      while (at && at.entry.level >= item.entry.level) at = at.previousSibling;
      return at;
    };
    const keys = {
      ArrowDown: () => item.nextSibling?.focus(),
      ArrowUp: () => item.previousSibling?.focus(),
      ArrowRight: () => (item.entry.isOpen ? item.nextSibling.focus() : open(item)),
      ArrowLeft: () => (item.entry.isOpen ? close(item) : caller()?.focus()),
      Enter: () => (item.entry.isOpen ? close(item) : open(item)),
      Home: () => list.firstChild.focus(),
    };
    const act = keys[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  });

  return {
    update() {
      list.replaceChildren();
      insert(null, callees.roots().filter((root) => view.total[root] > 0), 1, 0);
      // The hottest way down is open, as far as there is one.
      let item = list.firstChild;
      for (let depth = 0; item && depth < 40 && item.entry.below && item.entry.below.length > 0; depth += 1) {
        open(item);
        if (item.entry.below.length > 1 && view.total[item.entry.below[0]] < view.total[item.entry.node] / 2) break;
        item = item.nextSibling;
      }
      if (list.firstChild) list.firstChild.tabIndex = 0;
    },
  };
})();

const table = (() => {
  const body = element("functions");
  const MANY = 500;
  let bySelf = true;

  function update() {
    const { self, total } = functions();
    const [main, other] = bySelf ? [self, total] : [total, self];
    let rows = [];
    for (let frame = 0; frame < total.length; frame += 1) {
      if (total[frame] > 0 && profile.isFunction[frame] && (!search.isOn || search.isHit[frame])) rows.push(frame);
    }
    rows.sort((a, b) => main[b] - main[a] || other[b] - other[a]);
    const count = rows.length;
    rows = rows.slice(0, MANY);
    body.replaceChildren(...rows.map((frame) => {
      const made = make("tr");
      const button = make("button", search.isOn ? "hit" : "", profile.names[frame]);
      button.addEventListener("click", () => find(profile.names[frame]));
      const name = make("td");
      name.append(button, " ", make("span", "file", profile.files[frame]));
      made.append(make("td", "", percent(self[frame])), make("td", "", percent(total[frame])), name);
      return made;
    }));
    element("functions-more").textContent = count > MANY ? `${count - MANY} more; search to see them` : "";
  }

  function sort(self) {
    bySelf = self;
    element("by-self").setAttribute("aria-pressed", self);
    element("by-total").setAttribute("aria-pressed", !self);
    update();
  }
  element("by-self").addEventListener("click", () => sort(true));
  element("by-total").addEventListener("click", () => sort(false));
  return { update };
})();

const times = await (async () => {
  const box = element("times");
  const canvas = element("time-line");
  const context = canvas.getContext("2d", { alpha: false });
  const ROW = 16;
  const MANY = 200;
  const { spans } = profile.time;
  /** The threads with most samples, each with its samples by span. */
  const rows = await (async () => {
    const { cell } = profile;
    const sums = new Float64Array(profile.threads.length);
    for (let at = 0; at < cell.thread.length; at += 1) {
      sums[cell.thread[at]] += cell.count[at];
      if ((at & PIECE) === 0) await pause();
    }
    const order = [...sums.keys()].sort((a, b) => sums[b] - sums[a]);
    const shown = order.slice(0, MANY).map((thread) => ({ thread, sum: sums[thread], counts: new Float64Array(spans) }));
    const placed = new Map(shown.map((row) => [row.thread, row.counts]));
    for (let at = 0; at < cell.thread.length; at += 1) {
      const counts = placed.get(cell.thread[at]);
      if (counts) counts[cell.span[at]] += cell.count[at];
      if ((at & PIECE) === 0) await pause();
    }
    return { shown, order, sums };
  })();
  let drag = null;

  const left = () => Math.min(150, box.clientWidth * 0.3);
  const label = (thread) => `${profile.threads[thread][2]} ${profile.threads[thread][1]}`;

  function draw() {
    if (spans === 0) { box.hidden = true; return; }
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [box.clientWidth, rows.shown.length * ROW + 2];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const colours = graph.colours();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colours.back;
    context.fillRect(0, 0, width, height);
    context.font = "11px ui-monospace, monospace";
    context.textBaseline = "middle";
    const start = left();
    const scale = (width - start) / spans;
    let most = 1;
    for (const row of rows.shown) for (const count of row.counts) most = Math.max(most, count);
    rows.shown.forEach((row, at) => {
      const top = at * ROW + 1;
      const isChosen = chosen.thread === row.thread;
      context.globalAlpha = chosen.thread < 0 || isChosen ? 1 : 0.45;
      context.fillStyle = isChosen ? colours.chosen : colours.front;
      context.fillText(label(row.thread).slice(0, Math.floor((start - 8) / 6.7)), 4, top + ROW / 2);
      context.fillStyle = colours.found[1];
      for (let span = 0; span < spans; span += 1) {
        if (row.counts[span] === 0) continue;
        const tall = Math.max(1, (row.counts[span] / most) * (ROW - 2));
        context.fillRect(start + span * scale, top + ROW - 1 - tall, Math.max(scale, 0.6), tall);
      }
    });
    context.globalAlpha = 0.25;
    context.fillStyle = colours.chosen;
    if (chosen.from > 0 || chosen.to < spans) {
      context.fillRect(start + chosen.from * scale, 0, (chosen.to - chosen.from) * scale, height);
    }
    context.globalAlpha = 1;
  }

  const spanAt = (event) => {
    const edge = canvas.getBoundingClientRect();
    const part = (event.clientX - edge.left - left()) / (edge.width - left());
    return Math.min(Math.max(part, 0), 1) * spans;
  };
  const rowAt = (event) => rows.shown[Math.floor((event.clientY - canvas.getBoundingClientRect().top) / ROW)];

  canvas.addEventListener("pointerdown", (event) => {
    drag = { from: spanAt(event), x: event.clientX };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const row = rowAt(event);
    if (row) element("detail").textContent = `thread ${label(row.thread)} of process ${profile.threads[row.thread][0]}: ${counted(row.sum)}`;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const [a, b] = [drag.from, spanAt(event)].sort((x, y) => x - y);
    const isClick = Math.abs(event.clientX - drag.x) < 4;
    drag = null;
    const row = rowAt(event);
    if (!isClick) {
      chosen.from = Math.floor(a);
      chosen.to = Math.max(Math.ceil(b), chosen.from + 1);
    } else if (row) {
      chosen.thread = chosen.thread === row.thread ? -1 : row.thread;
    }
    changed();
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });

  return { draw, label, order: rows.order, sums: rows.sums };
})();
