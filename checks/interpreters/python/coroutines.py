"""Generators, coroutines, asynchronous generators and what drives them."""

import asyncio
import contextlib


def numbers(count):
    for number in range(count):
        yield number


def chained(depth):
    if depth:
        yield from chained(depth - 1)
    yield from numbers(8)


@contextlib.contextmanager
def context():
    yield sum(chained(5))


class Awaitable:
    def __await__(self):
        with context():
            yield


async def source(count):
    for number in range(count):
        await Awaitable()
        yield number


async def nested(depth):
    if depth:
        return await nested(depth - 1)
    return [number async for number in source(3)]


async def main():
    while True:
        tasks = [asyncio.ensure_future(nested(depth)) for depth in range(6)]
        await asyncio.gather(*tasks)
        generator = chained(3)
        next(generator)
        with contextlib.suppress(StopIteration, KeyError):
            generator.throw(KeyError)


asyncio.run(main())
