// Functions that wait, generators, and what is called by timers.
const { stop } = require('./stop.cjs');

async function leaf(value) {
  stop(5);
  await null;
  return stop(7) + value;
}

function* numbers(count) {
  for (let number = 0; number < count; number += 1) yield stop(11) + number;
}

async function* later(count) {
  for (const number of numbers(count)) yield await leaf(number);
}

async function all(depth) {
  if (depth > 0) return all(depth - 1);
  let sum = 0;
  for await (const number of later(3)) sum += number;
  return sum + (await Promise.all([leaf(1), leaf(2)])).length;
}

function again() {
  all(3).then(() => setImmediate(again));
  new Promise((resolve) => resolve(stop(3)));
  queueMicrotask(() => stop(3));
}

again();
