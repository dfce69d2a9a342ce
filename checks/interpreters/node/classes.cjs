// Methods, accessors, constructors and static blocks of classes, and recursion.
const { stop } = require('./stop.cjs');

class Shape {
  constructor(depth) {
    this.depth = depth;
    if (depth === 0) stop(40);
  }
  get area() {
    return this.depth > 0 ? this.inner().area : stop(30);
  }
  inner() {
    return new this.constructor(this.depth - 1);
  }
  static of(depth) {
    return new this(depth).area;
  }
}

class Circle extends Shape {
  constructor(depth) {
    super(depth);
    this.radius = 1;
  }
  get area() {
    return super.area;
  }
}

function recursion(depth) {
  if (depth > 0) return recursion(depth - 1) + 1;
  return Circle.of(2) + Shape.of(1);
}

for (let round = 0; ; round += 1) recursion(round % 20);
