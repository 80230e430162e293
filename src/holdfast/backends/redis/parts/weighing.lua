-- weighing: how many bytes of arguments a claim hands out. A body that is not handed out is not read.
-- Takes claim.rows, what is leased so far; claim.bytes, what it may still hand out; claim.bodies, what was read.
-- `body_max` in meta is at least as long as the longest body ever stored: where even so many bytes for each job fit, no
-- length is looked at. A store made before has none, and every length is looked at.
-- seldom: built when a script first uses one of its names.

local BODY_HEAD, HUGE = 9, 1e15 -- a body without options and revival is longer than its arguments by so many bytes
local OPTIONS_SEEN_MAX = 4096 -- a body that is too long by more than options usually are is not read to make sure

-- May the claim hand out this job, too? The first one it may whatever its size.
function hf.fits(id, claim)
    local first = #claim.rows == 0
    local length = call('HSTRLEN', BODIES, id) - BODY_HEAD
    if not first and length - OPTIONS_SEEN_MAX > claim.bytes then return false end
    local body = call('HGET', BODIES, id)
    local bytes = body and #body >= BODY_HEAD and math.min(struct.unpack('>I4', body), #body) or 0
    if not first and bytes > claim.bytes then return false end
    claim.bytes, claim.bodies[id] = claim.bytes - bytes, body
    return true
end

-- A body longer than any before: twice as much is noted, so that this is seldom written.
function hf.note_largest(length)
    meta[8] = format('%.0f', 2 * length)
    call('HSET', META, 'body_max', meta[8])
end
