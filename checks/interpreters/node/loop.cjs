// Loops in a chain of calls that is known: `outer`, `middle`, `inner`. It tells nothing.
function inner(count) {
  let sum = 0;
  for (let at = 0; at < count; at += 1) sum = (sum * 31 + at) % 1000003;
  return sum;
}

function middle(count) {
  let sum = 0;
  for (let at = 0; at < 50; at += 1) sum += inner(count + at);
  return sum;
}

class Outer {
  outer(count) {
    return [1, 2, 3].map((value) => middle(count + value));
  }
}

process.stdout.write('""\n');
for (;;) new Outer().outer(20000);
