-- retain: remove what a task's rule lets go, one page: finished jobs beyond a number, dead letters with their jobs
-- beyond a number or an age. The oldest first. And list finished jobs whose task did not keep a number of them before.
-- Takes now, what (list, count, dead_age, dead_count), task, the number to keep or the time before which letters go,
-- how many are still to be looked at or nil for the first page, how many may be removed, page size; ARGV[2]: the member
-- to go on after.
-- Returns how many were removed, how many are still to be looked at, the member to go on after ('' at the end).
-- Never removes a job finished within REMEMBER_SECONDS_MIN, one whose key's window has not passed, nor the letter of a
-- live job. Safe against a rival: a script runs alone.

if sealed then return hf.refused_sealed() end
local what, task, number, left, limit, page = unpack(args, 2, 7)

if what == 'list' then
    local after = call('HGET', META, 'listing')
    if not after then return { 0, 0, '' } end
    local found = call('ZRANGEBYLEX', FINISHED, after == '' and '[c' or '(' .. after, '(d', 'LIMIT', 0, page)
    if #found < page then
        local from = sub(after, 1, 1) == 'o' and '(' .. after or '[o'
        for _, member in ipairs(call('ZRANGEBYLEX', FINISHED, from, '+', 'LIMIT', 0, page - #found)) do
            found[#found + 1] = member
        end
    end
    local ids = {}
    for i, member in ipairs(found) do ids[i] = sub(member, (string.find(member, '\0', 2, true) or #member) + 9) end
    for _, row in ipairs(hf.rows_at('finished', FINISHED, found, ids, 'oc')) do hf.list_kept(row, true) end
    hf.flush()
    local last = #found == page and found[page] or ''
    if last == '' then call('HDEL', META, 'listing') else call('HSET', META, 'listing', last) end
    return { 0, 0, last }
end

local key, prefix = what == 'count' and KEPT or DEAD, hf.escape(task)
local low, high = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'
if what == 'dead_age' then
    if number < 0 then return { 0, 0, '' } end -- the clock is younger than the age
    high = '(' .. prefix .. spack('>d', number) .. '\255'
end
if not left then left = call('ZLEXCOUNT', key, low, high) - (what == 'dead_age' and 0 or number) end
if left <= 0 then return { 0, 0, '' } end
if ARGV[2] ~= '' then low = '(' .. ARGV[2] end
local members = call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, math.min(left, page))

local function may_go(row)
    return row[FINISHED_AT] and row[FINISHED_AT] <= now - REMEMBER_SECONDS_MIN and hf.is_past_window(row)
end

local ids, last = {}, ''
for _, member in ipairs(members) do
    if #ids == limit then break end
    last, left = member, left - 1
    local tail = sub(member, #prefix + 17)
    local letter = key == DEAD and hf.letter_at(tail)
    local row = hf.row_of(letter and letter.id or tail)
    if row and may_go(row) and (key == KEPT or row[STATE] == 'd') then
        if letter then hf.drop_letter(tail) end
        ids[#ids + 1] = row[ID]
    end
end
hf.remove_rows(ids)
return { #ids, left, left > 0 and last or '' }
