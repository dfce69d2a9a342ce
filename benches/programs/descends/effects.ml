open Effect
open Effect.Deep

type _ Effect.t += Next : int -> int Effect.t

let rec descend level round =
  if level = 0 then perform (Next round)
  else
    let list = List.sort compare (List.init 20 (fun i -> i * round * 7919 mod 101)) in
    List.hd list + descend (level - 1) round

let answer (type a) (asked : a Effect.t) : ((a, int) continuation -> int) option =
  match asked with
  | Next round ->
      Some (fun k -> continue k (String.length (Printf.sprintf "%d %f" round (float round))))
  | _ -> None

let () =
  let round = ref 0 in
  while true do
    let below () = descend 8 !round + descend 3 !round in
    let found = match_with below () { retc = Fun.id; exnc = raise; effc = answer } in
    round := (!round + found + 1) mod 1000
  done
