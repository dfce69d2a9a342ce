// Spends a second of CPU time in one function, called by others of the same file.
function innermost(n) {
  let x = 1;
  for (let i = 0; i < n; i++) x = (x * 1103515245 + 12345) & 0x7fffffff;
  return x;
}

function middle(depth, n) {
  return depth ? middle(depth - 1, n) ^ 1 : innermost(n);
}

function used() {
  const { user, system } = process.cpuUsage();
  return user + system;
}

const end = used() + 1000000;
let sum = 0;
while (used() < end) sum ^= middle(10, 20000);
