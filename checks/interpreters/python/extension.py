"""An extension module that calls Python from a C library, and from threads of its own."""

import ctypes
import json

libc = ctypes.CDLL(None)
Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def order(one, other):
    return one[0] - other[0]


@Compare
def compare(one, other):
    return order(one, other)


@Start
def start(argument):
    sort(5)
    return 0


def sort(count):
    array = (ctypes.c_int * count)(*range(count, 0, -1))
    libc.qsort(array, count, ctypes.sizeof(ctypes.c_int), compare)


def hook(pairs):
    return {name: sorted(value, key=lambda item: str(item)) for name, value in pairs}


class Encoder(json.JSONEncoder):
    def default(self, value):
        return list(value)


while True:
    sort(9)
    json.loads('{"one": [3, 2, 1], "two": [{"x": [1]}, 5]}', object_pairs_hook=hook)
    json.dumps([{1, 2}, {3}], cls=Encoder)
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, start, None)
    libc.pthread_join(thread, None)
