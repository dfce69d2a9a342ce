import std/[algorithm, strutils]

proc descend(level, round: int): int =
  var room = newSeq[string](level + 1)
  room[0] = intToStr(round, 6)
  if level > 0:
    return descend(level - 1, round) + room[0].len
  for i in 0 ..< 30:
    room.add($(i * round * 7919 mod 101))
  room.sort()
  if round mod 3 == 0:
    raise newException(ValueError, room[0])
  room.len

var total, round = 0
while true:
  round = (round + 1) mod 1000
  try: total = total xor descend(round mod 12, round)
  except ValueError as error: total = error.msg.len
