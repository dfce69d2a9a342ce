const std = @import("std");

noinline fn descend(level: u32, round: u32) usize {
    var room: [64]u32 = undefined;
    var text: [32]u8 = undefined;
    const shown = std.fmt.bufPrint(&text, "{d} {x}", .{ level, round }) catch return 0;
    if (level > 0) return descend(level - 1, round) + shown.len;
    for (&room, 0..) |*word, i| word.* = @intCast((i * round * 7919) % 101);
    std.mem.sort(u32, &room, {}, std.sort.asc(u32));
    return room[0];
}

pub fn main() void {
    var round: u32 = 1;
    while (true) : (round = round % 1000 + 1) {
        std.mem.doNotOptimizeAway(descend(round % 12, round));
    }
}
