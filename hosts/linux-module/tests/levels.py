# SPDX-License-Identifier: MIT OR GPL-2.0
"""A Python program whose native stack is known: 12 calls, each by a function of C."""
import sys


def level(left):
    if left:
        return max([left - 1], key=level)
    total = 0
    for number in range(20000):
        total += number
    return total


for _ in range(int(sys.argv[1])):
    level(11)
