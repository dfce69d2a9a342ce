// The graph: a flame graph that grows up, or an icicle that grows down.

const graph = (() => {
  const canvas = element("graph");
  const scroll = element("graph-scroll");
  const space = element("graph-space");
  const context = canvas.getContext("2d", { alpha: false });
  const ROW = 18;
  /** Frames that are thinner, in pixels, are drawn as one with those beside them. */
  const THIN = 0.8;
  let growsUp = true;
  /** The node that has the whole width, or -1. */
  let root = -1;
  /** The node under the keyboard, or -1. */
  let current = -1;
  let rows = [];
  let colours = null;
  let letter = 7;

  /** Where frames are: by row a list of left edge, width and node; of merged ones -1. */
  function place(width) {
    rows = [];
    const put = (depth, left, wide, node) => {
      while (rows.length <= depth) rows.push([]);
      rows[depth].push(left, wide, node);
    };
    const path = [];
    for (let node = root; node >= 0; node = isRoot(node) ? -1 : profile.caller[node]) path.unshift(node);
    path.forEach((node, depth) => put(depth, 0, width, node));
    const all = root < 0 ? view.all : view.total[root];
    if (!(all > 0)) return;
    const scale = width / all;
    const toDo = [[root, path.length, 0]];
    while (toDo.length > 0) {
      const [node, depth, start] = toDo.pop();
      let left = start;
      let thin = 0;
      for (const callee of node < 0 ? callees.roots() : callees.of(node)) {
        const wide = view.total[callee] * scale;
        if (wide < THIN) {
          thin += wide;
          continue;
        }
        put(depth, left, wide, callee);
        toDo.push([callee, depth + 1, left]);
        left += wide;
      }
      if (thin >= THIN) put(depth, left, thin, -1);
    }
  }

  function readColours() {
    const styles = getComputedStyle(document.body);
    const swatches = element("legend").querySelectorAll("i");
    const probe = element("detail");
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      const colour = getComputedStyle(probe).color;
      probe.style.color = "";
      return colour;
    };
    colours = {
      back: styles.backgroundColor, front: styles.color, merged: read("merged"), mark: read("mark"),
      chosen: read("chosen"),
      found: [...swatches].map((swatch) => getComputedStyle(swatch).backgroundColor),
    };
  }

  const rowTop = (depth) => (growsUp ? rows.length - 1 - depth : depth) * ROW;

  function draw() {
    if (scroll.clientWidth === 0) return;
    if (colours === null) readColours();
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [scroll.clientWidth, scroll.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px ui-monospace, monospace";
    letter = context.measureText("m").width;
    context.textBaseline = "middle";
    context.fillStyle = colours.back;
    context.fillRect(0, 0, width, height);
    for (let depth = 0; depth < rows.length; depth += 1) {
      const top = rowTop(depth) - scroll.scrollTop + graphTop();
      if (top <= -ROW || top >= height) continue;
      drawRow(rows[depth], top, width);
    }
  }

  /** A flame graph that is lower than the screen stands at its foot. */
  const graphTop = () => (growsUp ? Math.max(0, scroll.clientHeight - rows.length * ROW) : 0);

  function drawRow(row, top, width) {
    for (let at = 0; at < row.length; at += 3) {
      const [left, wide, node] = [row[at], row[at + 1], row[at + 2]];
      const drawn = Math.max(wide - (wide > 3 ? 1 : 0), 0.5);
      const frame = node < 0 ? -1 : profile.frame[node];
      const isHit = frame >= 0 && search.isOn && search.isHit[frame] === 1;
      context.globalAlpha = search.isOn && !isHit ? 0.4 : 1;
      context.fillStyle = node < 0 ? colours.merged : isHit ? colours.mark : colours.found[profile.foundBy[node]];
      context.fillRect(left, top, drawn, ROW - 1);
      context.globalAlpha = 1;
      const room = Math.floor((wide - 6) / letter);
      if (room >= 3 && frame >= 0) {
        context.fillStyle = isHit ? colours.back : colours.front;
        const name = profile.names[frame];
        context.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, left + 3, top + ROW / 2);
      }
      if (node >= 0 && node === current) {
        context.strokeStyle = colours.chosen;
        context.lineWidth = 2;
        context.strokeRect(left + 1, top + 1, Math.max(Math.min(drawn, width) - 2, 1), ROW - 3);
      }
    }
  }

  /** Places all frames anew. */
  function update() {
    if (scroll.clientWidth === 0) return;
    const fromFoot = space.offsetHeight - scroll.scrollTop;
    place(scroll.clientWidth);
    space.style.height = `${Math.max(rows.length * ROW, scroll.clientHeight)}px`;
    if (growsUp) scroll.scrollTop = space.offsetHeight - Math.max(fromFoot, scroll.clientHeight);
    draw();
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const y = event.clientY - box.top + scroll.scrollTop - graphTop();
    const row = Math.floor(y / ROW);
    const list = rows[growsUp ? rows.length - 1 - row : row] || [];
    const x = event.clientX - box.left;
    for (let place = 0; place < list.length; place += 3) {
      if (x >= list[place] && x < list[place] + Math.max(list[place + 1], 1)) return { node: list[place + 2] };
    }
    return null;
  }

  function tell(place) {
    const text = place === null ? "" : place.node < 0 ? "frames thinner than a pixel; zoom in to see them" : inWords(place.node);
    if (text !== "") element("detail").textContent = text;
  }

  function zoom(node) {
    root = node;
    if (node < 0) current = -1;
    update();
    if (growsUp) scroll.scrollTop = scroll.scrollHeight;
    else scroll.scrollTop = 0;
    draw();
  }

  /** Moves the keyboard's frame to where it is seen. */
  function go(node) {
    if (node === undefined || node < 0) return;
    current = node;
    const depth = rows.findIndex((row) => {
      for (let place = 2; place < row.length; place += 3) if (row[place] === node) return true;
      return false;
    });
    if (depth >= 0) {
      const top = rowTop(depth);
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      if (top + ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + ROW - scroll.clientHeight;
    }
    tell({ node });
    draw();
  }

  const seen = (list) => [...list].filter((node) => view.total[node] > 0);
  const siblings = (node) => seen(isRoot(node) ? callees.roots() : callees.of(profile.caller[node]));

  canvas.addEventListener("keydown", (event) => {
    const inwards = growsUp ? "ArrowUp" : "ArrowDown";
    const outwards = growsUp ? "ArrowDown" : "ArrowUp";
    const step = (by) => {
      const list = siblings(current);
      go(list[list.indexOf(current) + by]);
    };
    const start = () => (root >= 0 ? root : seen(callees.roots())[0]);
    const keys = {
      [inwards]: () => go(current < 0 ? start() : seen(callees.of(current))[0]),
      [outwards]: () => current >= 0 && !isRoot(current) && go(profile.caller[current]),
      ArrowLeft: () => current >= 0 && step(-1),
      ArrowRight: () => current >= 0 && step(1),
      Home: () => go(start()),
      Enter: () => current >= 0 && zoom(current),
      Backspace: () => root >= 0 && zoom(isRoot(root) ? -1 : profile.caller[root]),
      Escape: () => zoom(-1),
    };
    const act = keys[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  canvas.addEventListener("mousemove", (event) => tell(at(event)));
  canvas.addEventListener("click", (event) => {
    const place = at(event);
    if (place === null || place.node < 0) return;
    current = place.node;
    zoom(place.node === root ? -1 : place.node);
    tell(place);
  });
  scroll.addEventListener("scroll", draw);

  return {
    update,
    draw,
    recolour: () => { colours = null; draw(); },
    turn: (up) => { growsUp = up; update(); scroll.scrollTop = up ? scroll.scrollHeight : 0; draw(); },
    show: (node) => zoom(node),
    colours: () => { if (colours === null) readColours(); return colours; },
  };
})();
