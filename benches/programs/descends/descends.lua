local function descend(level, round)
    if level > 0 then return descend(level - 1, round) + #tostring(round) end
    local list = {}
    for i = 1, 40 do list[i] = i * round * 7919 % 101 end
    table.sort(list)
    if round % 3 == 0 then error("an odd round") end
    return #("one,two,three"):gsub("%w+", function(word) return word:upper() end)
end

local total = 0
while true do
    for round = 1, 1000 do
        if not pcall(function() total = total + descend(round % 12, round) end) then total = 0 end
    end
end
