exception Odd_round of string

let rec descend level round =
  if level > 0 then String.length (string_of_int round) + descend (level - 1) round
  else
    let list = List.sort compare (List.init 40 (fun i -> i * round * 7919 mod 101)) in
    let text = Printf.sprintf "%d %f" (List.hd list) (float round) in
    if round mod 3 = 0 then raise (Odd_round text) else String.length text

let () =
  let round = ref 0 and total = ref 0 in
  while true do
    round := (!round + 1) mod 1000;
    try total := !total lxor descend (!round mod 12) !round with Odd_round _ -> total := 0
  done
