# Recursions of different depth, callbacks from C code, and sleeps.
import json
import time


def descend(depth):
    if depth:
        return descend(depth - 1) + 1
    words = sorted((str(n) for n in range(200)), key=lambda word: word[::-1])
    return len(json.loads(json.dumps(words, default=str)))


print("ready", flush=True)
depth = 0
while True:
    depth = (depth * 5 + 3) % 64
    descend(depth)
    if depth % 8 == 0:
        time.sleep(0.002)
