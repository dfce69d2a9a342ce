import core.thread : Fiber;
import std.algorithm : sort;
import std.array : array;
import std.conv : to;
import std.range : iota;

class OddRound : Exception { this() { super("an odd round"); } }

int descend(int level, int round) {
    auto room = new int[](level + 1);
    scope (exit) room[0]++;
    if (level > 0) return descend(level - 1, round) + room[0];
    auto list = iota(40).array;
    list.sort!((a, b) => a * round * 7919 % 101 < b * round * 7919 % 101);
    if (round % 3 == 0) throw new OddRound;
    return list[0] + round.to!string.length.to!int;
}

void main() {
    for (int round = 1;; round = round % 1000 + 1) {
        auto fiber = new Fiber({ descend(6, round); Fiber.yield(); descend(3, round); });
        try {
            while (fiber.state != Fiber.State.TERM) { fiber.call(); descend(4, round); }
        } catch (OddRound) {}
    }
}
