program descends;
{$mode objfpc}{$H+}
uses classes, sysutils;
var round, total: integer;

function descend(level: integer): integer;
var list: TStringList; i: integer; text: string;
begin
  text := Format('%d of %d', [level, round]);
  if level > 0 then exit(descend(level - 1) + length(text));
  list := TStringList.Create;
  try
    for i := 1 to 30 do list.Add(IntToStr(i * round * 7919 mod 101));
    list.Sort;
    if round mod 3 = 0 then raise Exception.Create('an odd round');
    result := list.Count;
  finally
    list.Free;
  end;
end;

begin
  total := 0; round := 0;
  while true do begin
    round := (round + 1) mod 1000;
    try total := total xor descend(round mod 12);
    except on E: Exception do total := 0; end;
  end;
end.
