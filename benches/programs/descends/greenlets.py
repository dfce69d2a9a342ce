"""Two stacks of one thread, switched between in the midst of both."""

import random

import greenlet


def descend(level, caller):
    if level:
        return descend(level - 1, caller) + 1
    caller.switch(sorted(random.random() for _ in range(300)))
    return 0


def works(caller):
    while True:
        descend(8, caller)


worker = greenlet.greenlet(works)
worker.switch(greenlet.getcurrent())
while True:
    sorted(worker.switch() or [] for _ in range(20))
