// A thread of its own, beside one that waits.
const { Worker, isMainThread } = require('worker_threads');
const { stop } = require('./stop.cjs');

class Task {
  run(depth) {
    return depth > 0 ? this.run(depth - 1) : [1, 2].map((value) => this.step(value));
  }
  step(value) {
    return stop(30) + value;
  }
}

if (isMainThread) {
  new Worker(__filename);
} else {
  const task = new Task();
  for (let round = 0; ; round += 1) task.run(round % 4);
}
