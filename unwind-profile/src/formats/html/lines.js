// The lines of the source at which functions were sampled themselves.

const sourceLines = (() => {
  const list = element("lines");
  const MANY = 40;
  const { sources, rows, without } = profile.lines;
  /** By function its lines, that with most samples first. */
  const byFrame = new Map();
  for (const [frame, source, line, count, inlined] of rows) {
    if (!byFrame.has(frame)) byFrame.set(frame, { frame, samples: 0, rows: [] });
    const entry = byFrame.get(frame);
    entry.samples += count;
    entry.rows.push({ source, line, count, inlined });
  }
  const ordered = [...byFrame.values()].sort((a, b) => b.samples - a.samples);
  let all = 0;
  for (const count of profile.own) all += count;
  const share = (count) => `${(all > 0 ? (100 * count) / all : 0).toFixed(1)} %`;

  /** A line: its share, its number and its text, or what is known without it. */
  function row(count, number, text, inlined) {
    const made = make("tr", count > 0 ? "sampled" : "");
    const code = make("td");
    code.append(make("code", "", text === undefined ? "" : text));
    if (inlined) code.append(make("span", "file", ` inlined: ${inlined}`));
    made.append(make("td", "", count > 0 ? share(count) : ""), make("td", "file", String(number)), code);
    return made;
  }

  /** The lines of a function in one source, with what stands around them. */
  function part(entry, source) {
    const { path, text, newer } = sources[source];
    const texts = new Map(text);
    const own = entry.rows.filter((line) => line.source === source);
    const numbers = new Set(own.map((line) => line.line));
    for (const line of own) {
      for (let by = -3; by <= 3; by += 1) if (texts.has(line.line + by)) numbers.add(line.line + by);
    }
    const body = make("tbody");
    let last = 0;
    for (const number of [...numbers].sort((a, b) => a - b)) {
      if (last > 0 && number > last + 1) body.append(row(0, "…", ""));
      last = number;
      const here = own.filter((line) => line.line === number);
      if (here.length === 0) body.append(row(0, number, texts.get(number)));
      here.forEach((line, at) => body.append(row(line.count, number, at === 0 ? texts.get(number) : "", line.inlined)));
    }
    const made = make("table", "source");
    made.append(make("caption", "file", newer ? `${path} (changed since the program was made)` : path), body);
    return made;
  }

  return {
    update() {
      const found = ordered.filter((entry) => !search.isOn || search.isHit[entry.frame]);
      const parts = found.slice(0, MANY).map((entry) => {
        const made = make("article");
        const head = make("h3", search.isOn ? "hit" : "", profile.names[entry.frame]);
        head.append(make("span", "file", ` ${share(entry.samples)} self ${profile.files[entry.frame]}`));
        const order = [...new Set(entry.rows.map((line) => line.source))];
        made.append(head, ...order.map((source) => part(entry, source)));
        return made;
      });
      list.replaceChildren(...parts);
      const more = found.length > MANY ? `${found.length - MANY} more functions; search to see them. ` : "";
      const unknown = without > 0 ? `${counted(without)} of functions without known lines. ` : "";
      element("lines-more").textContent = `${more}${unknown}Of the whole recording, whatever thread and time are chosen.`;
    },
  };
})();
