// The functions of two recordings beside each other.

const differences = (() => {
  const body = element("difference-rows");
  const MANY = 500;
  const { difference } = profile;
  const byFrame = new Map();
  const bound = (row) => (row.bound === null ? "-" : `${(100 * row.bound).toFixed(2)} %`);
  const sign = (share) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(2)} %`;

  if (difference) {
    for (const [frame, own, all, mark, limit] of difference.functions) {
      const shares = (counts) => counts.map((count, side) => (difference.samples[side] > 0 ? count / difference.samples[side] : 0));
      byFrame.set(frame, { frame, own: shares(own), all: shares(all), mark, bound: limit });
    }
  }

  return {
    update() {
      const found = [...byFrame.values()].filter((row) => !search.isOn || search.isHit[row.frame]);
      body.replaceChildren(...found.slice(0, MANY).map((row) => {
        const made = make("tr");
        const name = make("td");
        const button = make("button", search.isOn ? "hit" : "", profile.names[row.frame]);
        button.addEventListener("click", () => find(profile.names[row.frame]));
        name.append(make("i", `swatch found-${profile.difference ? [1, 2, 0][row.mark + 1] : 0}`), " ", button, " ", make("span", "file", profile.files[row.frame]));
        const numbers = [sign(row.own[1] - row.own[0]), bound(row),
          ...row.own.map((share) => `${(100 * share).toFixed(2)} %`), ...row.all.map((share) => `${(100 * share).toFixed(2)} %`)];
        made.append(...numbers.map((number) => make("td", "", number)), name);
        return made;
      }));
      element("functions-more").textContent = found.length > MANY ? `${found.length - MANY} more; search to see them` : "";
    },
    /** What is known of a function in both, in words. */
    inWords(frame) {
      const row = byFrame.get(frame);
      if (row === undefined) return "";
      return `; self ${(100 * row.own[0]).toFixed(2)} % before, ${(100 * row.own[1]).toFixed(2)} % after (${sign(row.own[1] - row.own[0])}, bound ${bound(row)})`;
    },
  };
})();
