"""Python that calls C that calls Python."""

import functools
import re


class Key:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return functools.reduce(self.add, range(3), self.value) < other.value + 3

    def add(self, one, other):
        return one + other

    def __eq__(self, other):
        return self.value == other.value

    def __hash__(self):
        return hash(str(self.value))


class Property:
    @property
    def value(self):
        return max([3, 1, 2], key=lambda number: -number)

    def __getattr__(self, name):
        return len(name)


@functools.lru_cache(maxsize=4)
def cached(number):
    return sorted(map(Key, range(number, 0, -1)))


def replace(match):
    return str(Property().value + Property().missing)


while True:
    for number in range(12):
        cached(number)
    re.sub(r"\w", replace, "some words to replace")
    {Key(number % 5): number for number in range(20)}
    list(filter(lambda number: eval("number + 1"), range(10)))
