#!/usr/bin/env python3
"""cut.py IN.raw OUT.raw FIRST LAST: keeps the ring chunks FIRST..LAST of a recording.

Bytes are copied, not changed: the header, the chunks in that range and all notes and final
counts. A chunk holds whole records, so the cut is a recording in its own right; its listing
comes from decode.py on the cut.
"""
import struct, sys
source, target, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data = open(source, 'rb').read()
attrs, rings = struct.unpack_from('<II', data, 8)
at = 16
for _ in range(attrs):
    length, ids = struct.unpack_from('<II', data, at)
    at += 8 + length + 8 * ids
out, chunk = bytearray(data[:at]), 0
while at < len(data):
    kind, _, length = struct.unpack_from('<IIQ', data, at)
    end = at + 16 + length
    if kind != 1 or first <= chunk < last:
        out += data[at:end]
    chunk += kind == 1
    at = end
open(target, 'wb').write(out)
