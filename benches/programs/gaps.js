// Computes below twenty calls, and tells every 200 ms the longest time, in microseconds, in which
// it did not run.
'use strict';
let last = process.hrtime.bigint();
let longest = 0n;
let told = last;

function look() {
  const now = process.hrtime.bigint();
  if (now - last > longest) longest = now - last;
  if (now - told > 200000000n) {
    require('fs').writeSync(1, `${longest / 1000n}\n`);
    told = process.hrtime.bigint();
    longest = 0n;
    last = told;
    return;
  }
  last = now;
}

function descend(depth) {
  if (depth > 0) return descend(depth - 1) + 1;
  for (;;) look();
}

descend(20);
