"""Threads that work, wait for each other, sleep, start and end."""

import gc
import queue
import threading
import time


class Node:
    def __init__(self, other):
        self.other = other

    def __del__(self):
        len(str(self.other))


def work(items):
    while True:
        number = items.get()
        first, second = Node(None), Node(None)
        first.other, second.other = second, first
        sum(value * value for value in range(number))


def sleep():
    while True:
        time.sleep(0.001)


def short(depth):
    if depth:
        short(depth - 1)


items = queue.Queue(8)
for target in [work, work, sleep]:
    arguments = (items,) if target is work else ()
    threading.Thread(target=target, args=arguments, daemon=True).start()
while True:
    items.put(200)
    thread = threading.Thread(target=short, args=(20,))
    thread.start()
    gc.collect(0)
    thread.join()
