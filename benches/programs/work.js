// Objects, text, regular expressions, sorting by a comparison, and recursion.
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

const turns = Number(process.argv[2] || 2000);
for (let turn = 0; turn < turns; turn++) {
    const root = build(6);
    const seen = [];
    visit(root, (node) => seen.push(node.depth));
    const text = JSON.stringify(root, (key, value) => value, 1);
    const found = (text.match(/"(\w+)": (\d+|\[)/g) || []).sort((a, b) => a.localeCompare(b));
    const back = JSON.parse(text, (key, value) => value);
    if (total(back) + found.length + seen.length < turn) throw new Error("impossible");
}
