// Recursions of different depth, callbacks from native code, and turns of the
// event loop.
function descend(depth) {
  if (depth) return descend(depth - 1) + 1;
  const words = Array.from({ length: 200 }, (_, n) => String(n));
  words.sort((a, b) => (a.split('').reverse().join('') < b ? -1 : 1));
  return JSON.parse(JSON.stringify(words, (_, value) => value)).length;
}

let depth = 0;
function turn() {
  for (let i = 0; i < 20; i++) {
    depth = (depth * 5 + 3) % 64;
    descend(depth);
  }
  if (depth % 8) setImmediate(turn);
  else setTimeout(turn, 2);
}

process.stdout.write('ready\n');
turn();
