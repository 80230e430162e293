-- limit: an operator's word on a queue, a group or a task. A group is brought to it in the same step.
-- Takes now, kind (q, g, t), queue, name, and a limit and a rate as [value], false inside where it is reset, or nil
-- where it is left. Returns 1 where a task went into a lane of its own, 2 where it left it, else 0; or a refusal. A
-- task's jobs are moved by refill, page by page; claim passes over those not yet moved.

if sealed then return hf.refused_sealed() end
local kind, queue, name, limit, rate = unpack(args, 2, 6)
local scope = hf.scope_of(kind, queue, name)
if kind == 'g' and limit and limit[1] and limit[1] > 1 and hf.strict(queue, name) then
    return hf.refused('strict', { queue = queue, limit = limit[1] })
end
local was_apart = kind == 't' and hf.task_of(name)[3]
local packed = call('HGET', OVERRIDES, scope)
local said = packed and hf.read(packed) or { false, false }
if limit then said[1] = limit[1] end
if rate then said[2] = rate[1] end
if said[1] or said[2] then
    hf.use('o')
    call('HSET', OVERRIDES, scope, cpack(said))
else
    call('HDEL', OVERRIDES, scope)
end
hf.any_memo, hf.said_memo, hf.rule_memo, hf.task_memo = {}, {}, {}, {} -- what was looked up before holds no longer

local moves = 0
if kind == 't' then
    local is_apart = hf.task_of(name)[3]
    moves = is_apart and not was_apart and 1 or was_apart and not is_apart and 2 or 0
    hf.stir_apart(name)
elseif kind == 'g' then
    hf.touch(hf.place_of(queue, name))
else
    hf.stirred[queue] = true
end
hf.close()
return { moves }
