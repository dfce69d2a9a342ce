// Computes below twenty calls, and tells every 100 ms when it did not run: a line has the time, and
// each gap of 20 us and more since the line before as START:LENGTH, all in nanoseconds of
// CLOCK_MONOTONIC, so that who reads late knows what belongs to which time.
'use strict';
const { writeSync } = require('fs');

// A number is read faster than a big integer, which is memory to collect.
const now = () => performance.now() * 1e6;
const start = process.hrtime.bigint() - BigInt(Math.round(now()));
const text = (time) => String(start + BigInt(Math.round(time)));

let last = now();
let told = last;
let gaps = [];

function look() {
  const time = now();
  if (time - last >= 20e3) gaps.push([last, time - last]);
  last = time;
  if (time - told < 100e6) return;
  told = time;
  const fields = gaps.map(([at, length]) => `${text(at)}:${Math.round(length)}`);
  gaps = [];
  writeSync(1, `${[text(time), ...fields].join(' ')}\n`);
}

function descend(depth) {
  if (depth > 0) return descend(depth - 1) + 1;
  for (;;) look();
}

descend(20);
