// Tells the calls of this moment, and waits until it is told to go on.
const fs = require('fs');
Error.stackTraceLimit = 1000;
let calls = 0;

// Most calls only count, so that the functions that call this are compiled.
exports.stop = function stop(often) {
  calls += 1;
  if (calls % often !== 0) return calls;
  fs.writeSync(1, JSON.stringify(new Error().stack) + '\n');
  fs.readSync(0, Buffer.alloc(1));
  return calls;
};
