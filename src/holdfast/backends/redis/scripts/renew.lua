-- renew: move a worker's deadline; one small write however many leases it holds.
-- Takes now, worker, [id, token] pairs it holds, the last claim whose answer it has.
-- ARGV[2]: its portrait, if it shows one.
-- Returns known, and packed lists: lost, cancelled, released. Leases of seen claims that are not named are given back.

local id, held, seen = args[2], args[3], args[4]
local worker = hf.worker_row(id)
local lost, cancelled, released, named = {}, {}, {}, {}
if not worker then
    for i, one in ipairs(held) do lost[i] = one[1] end
    return { 0, cpack(lost), '\144', '\144' }
end
hf.prolong(id, worker)
if ARGV[2] then call('HSET', PORTRAITS, id, ARGV[2]) end
local ours = {}
local rows = hf.held_by(id)
for _, row in ipairs(rows) do ours[row[ID]] = row end
for _, one in ipairs(held) do
    local row = ours[one[1]]
    named[one[1]] = one[2]
    if not row or row[TOKEN] ~= one[2] then
        lost[#lost + 1] = one[1]
    elseif row[CANCEL_REQUESTED] then
        cancelled[#cancelled + 1] = one[1]
    end
end
for _, row in ipairs(rows) do
    if row[CLAIM_CALL] <= seen and named[row[ID]] ~= row[TOKEN] then
        hf.give_back(row)
        released[#released + 1] = row[ID]
    end
end
if #released > 0 then hf.close() end
return { 1, cpack(lost), cpack(cancelled), cpack(released) }
