"""Objects, text, regular expressions, sorting by a key, and recursion: as many turns as the first
argument says, and an empty line after each piece of as many turns as the second one says."""

import functools
import json
import re
import sys


class Node:
    def __init__(self, depth):
        self.children = [Node(depth - 1) for _ in range(3)] if depth else []
        self.depth = depth

    def visit(self, visitor):
        visitor(self)
        for child in self.children:
            child.visit(visitor)

    def total(self):
        return self.depth + sum(child.total() for child in self.children)


def as_dict(node):
    return {"depth": node.depth, "children": [as_dict(child) for child in node.children]}


@functools.lru_cache(maxsize=50)
def ways(n):
    return 1 if n < 2 else ways(n - 1) + ways(n - 2)


def main(turns, piece):
    word = re.compile(r'"(\w+)": (\d+|\[)')
    for turn in range(turns):
        root = Node(6)
        seen = []
        root.visit(lambda node: seen.append(node.depth))
        text = json.dumps(as_dict(root), indent=1)
        found = sorted(word.findall(text), key=lambda pair: (pair[1], pair[0]))
        ways.cache_clear()
        numbers = list(map(str, map(ways, range(200))))
        json.loads(text)
        assert root.total() + len(found) + len(numbers) > 0
        if piece and turn % piece == 0:
            print(flush=True)


main(int(sys.argv[1]) if sys.argv[1:] else 1000, int(sys.argv[2]) if sys.argv[2:] else 0)
