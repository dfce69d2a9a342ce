// Objects, text, regular expressions, sorting by a comparison, and recursion: as many turns as the first
// argument says, and an empty line after each piece of as many turns as the second one says.
"use strict";

function build(depth) {
    return { depth, children: depth ? Array.from({ length: 3 }, () => build(depth - 1)) : [] };
}

function visit(node, visitor) {
    visitor(node);
    node.children.forEach((child) => visit(child, visitor));
}

function total(node) {
    return node.children.reduce((sum, child) => sum + total(child), node.depth);
}

const fs = require("fs");
const turns = Number(process.argv[2] || 2000);
const piece = Number(process.argv[3] || 0);
for (let turn = 0; turn < turns; turn++) {
    const root = build(6);
    const seen = [];
    visit(root, (node) => seen.push(node.depth));
    const text = JSON.stringify(root, (key, value) => value, 1);
    const found = (text.match(/"(\w+)": (\d+|\[)/g) || []).sort((a, b) => a.localeCompare(b));
    const back = JSON.parse(text, (key, value) => value);
    if (total(back) + found.length + seen.length < 1) throw new Error("impossible");
    if (piece && turn % piece === 0) fs.writeSync(1, "\n");
}
