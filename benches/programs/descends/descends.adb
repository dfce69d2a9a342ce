with Ada.Containers.Vectors;

procedure Descends is
   package Lists is new Ada.Containers.Vectors (Positive, Integer);
   package Sorting is new Lists.Generic_Sorting;
   Odd_Round : exception;
   Total     : Long_Long_Integer := 0;

   function Descend (Level : Natural; Round : Natural) return Integer is
      Text : constant String (1 .. Level + 1) := (others => 'x');
      List : Lists.Vector;
   begin
      if Level > 0 then
         return Descend (Level - 1, Round) + Text'Length;
      end if;
      for I in 1 .. 40 loop
         List.Append ((I * Round * 7_919) mod 101);
      end loop;
      Sorting.Sort (List);
      if Round mod 3 = 0 then
         raise Odd_Round;
      end if;
      return List.First_Element;
   end Descend;
begin
   loop
      for Round in 1 .. 1_000 loop
         begin
            Total := Total + Long_Long_Integer (Descend (Round mod 12, Round));
         exception
            when Odd_Round => Total := 0;
         end;
      end loop;
   end loop;
end Descends;
