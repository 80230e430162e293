-- begin: mark leases begun before their handlers start.
-- Takes now, [id, token] pairs. Returns one letter each: o, l lost, c cancel asked for. Fenced by the token.

local answers, ids = {}, {}
for i, held in ipairs(args[2]) do ids[i] = held[1] end
hf.load_rows(ids)
for i, held in ipairs(args[2]) do
    local row = hf.fenced(held[1], held[2])
    answers[i] = not row and 'l' or row[CANCEL_REQUESTED] and 'c' or 'o'
    if answers[i] == 'o' and not row[BEGUN] then
        row[BEGUN] = true
        hf.changed[row[ID]] = row
    end
end
hf.save_rows()
return { concat(answers) }
