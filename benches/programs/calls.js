// Recursion, a generator, and a builtin function that calls JavaScript back: a line after each piece of work.
const { writeSync } = require('fs');
function leaf(value) {
  let total = 0;
  for (let number = 0; number < 400; number++) total = (total * 31 + number * value) | 0;
  return total;
}
class Worker {
  key(value) { return leaf(value); }
  *rows() { for (let row = 0; row < 3; row++) yield [3, 1, 2].map(value => this.key(value)); }
  dive(depth) { return depth ? this.dive(depth - 1) : [...this.rows()]; }
}
const [pieces, length] = process.argv.slice(2).map(Number);
for (let piece = 0; piece < pieces; piece++) {
  for (let round = 0; round < length; round++) new Worker().dive(8);
  writeSync(1, '\n');
}
