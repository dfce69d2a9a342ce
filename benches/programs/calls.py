# Recursion, a generator, and C that calls Python back: a line after each piece of work.
import sys


def leaf(value):
    total = 0
    for number in range(40):
        total += number * value
    return total


class Worker:
    def key(self, value):
        return leaf(value)

    def rows(self):
        for _ in range(3):
            yield sorted([3, 1, 2], key=self.key)

    def dive(self, depth):
        return self.dive(depth - 1) if depth else list(self.rows())


def main(pieces, length):
    for _ in range(pieces):
        for _ in range(length):
            Worker().dive(8)
        print(flush=True)


main(int(sys.argv[1]), int(sys.argv[2]))
