-- carry: put rows of another store into this one as they are, and move the counters above them.
-- Takes now, rules as [name, limit, order], overrides as [queue, group, limit], pauses as [kind, queue, name, pause],
-- jobs as their records, letters as [queue, task, key, letter], what ticks and seqs go on above. ARGV[2] and ARGV[3]:
-- the seal that was read and the one that remembers how far it is; then for each job five pieces, '' for none:
-- body, value, errors, progress, log lines.
-- Returns 1, or 0 where another seal is there, or -1 where a live job has the key of another: then nothing was changed.
-- What is there already stays, so a repeated shipment changes nothing. Nothing is refilled: a group may come in pieces.
-- Safe against a rival: a script runs alone, and the rows and the place reached are written in the same step.
-- needs: opening turns names rows index letters

local rules, overrides, pauses, jobs, letters = unpack(args, 2, 6)
if call('HGET', META, 'seal') ~= ARGV[2] then return { 0 } end

local ids, taken = {}, {}
for i, row in ipairs(jobs) do ids[i] = row[ID] end
hf.load_rows(ids)
for _, row in ipairs(jobs) do
    if row[KEY] and LIVE_STATES[row[STATE]] and not hf.cache[row[ID]] then
        local logical = hf.logical_of(row)
        if (taken[logical] or row[ID]) ~= row[ID] or hf.live_with(logical) then return { -1 } end
        taken[logical] = row[ID]
    end
end

for _, rule in ipairs(rules) do call('HSETNX', RULES, rule[1], cpack({ rule[2], rule[3] })) end
for _, one in ipairs(overrides) do call('HSETNX', OVERRIDES, hf.place_of(one[1], one[2]), one[3]) end
for _, one in ipairs(pauses) do call('HSETNX', PAUSES, hf.pause_name(one[1], one[2], one[3]), cpack(one[4])) end

hf.tick, hf.seq = math.max(hf.tick, args[7]), math.max(hf.seq, args[8])
local pieces = { {}, {}, {}, {}, {} }
for i, row in ipairs(jobs) do
    local id = row[ID]
    if not hf.cache[id] then
        hf.cache[id] = row
        hf.enter(row)
        hf.put(SEQS, id, format('%.0f', row[SEQ]))
        hf.tick, hf.seq = math.max(hf.tick, row[FENCE], row[TURN] or 0), math.max(hf.seq, row[SEQ])
        for kind, values in ipairs(pieces) do
            local piece = ARGV[5 * i - 2 + kind]
            if piece ~= '' then values[#values + 1], values[#values + 2] = id, piece end
        end
    end
end
for kind, key in ipairs({ BODIES, VALUES, ERRORS, PROGRESS, LOGS }) do
    hf.in_pieces('HSET', key, pieces[kind], #pieces[kind])
end
hf.flush()
hf.save_live()
hf.save_rows()
for _, one in ipairs(letters) do
    local letter = one[4]
    local logical = one[3] and 'k' .. hf.escape(one[1]) .. hf.escape(one[2]) .. one[3] or 'i' .. letter.id
    if not hf.letter_at(logical) then hf.keep_letter(logical, letter) end
end
hf.save_tick()
call('HSET', META, 'seal', ARGV[3], 'sealed', ARGV[3])
return { 1 }
