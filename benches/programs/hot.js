// Compiled code alone, which has no tables: arithmetic in loops, calls by recursion and by way of
// objects, and an array that is sorted by hand. As many turns as the first argument says.
"use strict";

class Leaf {
    constructor(value) { this.value = value; }
    sum(scale) { return Math.imul(this.value, scale) | 0; }
}

class Fork {
    constructor(left, right) { this.left = left; this.right = right; }
    sum(scale) { return (this.left.sum(scale + 1) ^ this.right.sum(scale + 2)) | 0; }
}

function grow(depth, value) {
    return depth ? new Fork(grow(depth - 1, value * 2), grow(depth - 1, value * 2 + 1)) : new Leaf(value);
}

function quick(words, from, to) {
    while (to - from > 1) {
        const middle = words[(from + to) >> 1];
        let [low, high] = [from, to - 1];
        while (low <= high) {
            while (words[low] < middle) low++;
            while (words[high] > middle) high--;
            if (low <= high) {
                const word = words[low];
                words[low++] = words[high];
                words[high--] = word;
            }
        }
        quick(words, from, high + 1);
        from = low;
    }
}

function mix(words, seed) {
    for (let at = 0; at < words.length; at++) {
        seed = (Math.imul(seed, 1664525) + 1013904223) | 0;
        words[at] = seed >>> 8;
    }
    return seed;
}

const turns = Number(process.argv[2] || 1e9);
const tree = grow(10, 1);
const words = new Int32Array(4096);
let seed = 1;
for (let turn = 0; turn < turns; turn++) {
    seed = mix(words, seed) ^ tree.sum(turn);
    quick(words, 0, words.length);
    if (words[0] > words[words.length - 1]) throw new Error("impossible");
}
