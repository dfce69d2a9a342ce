"""Functions that call themselves and each other, deep and shallow, in classes and closures."""


class Tree:
    def __init__(self, depth):
        self.children = [Tree(depth - 1) for _ in range(2)] if depth else []

    def count(self):
        return 1 + sum(child.count() for child in self.children)


def fib(number):
    return number if number < 2 else fib(number - 1) + fib(number - 2)


def down(depth):
    if depth == 0:
        return fib(9)

    def closure():
        return down(depth - 1)

    return closure()


def raising(depth):
    try:
        if depth == 0:
            raise ValueError
        return raising(depth - 1)
    finally:
        fib(3)


while True:
    Tree(5).count()
    down(20)
    try:
        raising(6)
    except ValueError:
        pass
