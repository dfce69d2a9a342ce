// Functions that builtin functions call, closures among them.
const { stop } = require('./stop.cjs');

function least(list) {
  return list.sort((one, other) => {
    stop(100);
    return one - other;
  })[0];
}

function mapped(list) {
  return list.map(function (value) {
    return [value].reduce((sum, each) => sum + least([each, sum, 3]), 1);
  });
}

const text = {
  toString() {
    return String(stop(50));
  },
};

function replaced(value) {
  return 'abc'.replace(/b/, () => `${text}${value}`);
}

for (;;) {
  mapped([3, 1, 2]).forEach(replaced);
  JSON.stringify({ toJSON: () => mapped([1]) });
  Reflect.apply(replaced, null, [1]);
}
