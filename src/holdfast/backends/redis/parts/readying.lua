-- readying: how jobs become ready. A step that touched groups ends with refill_touched.

local STAGGER_TICKS = 2592000000000
hf.moved = 0 -- jobs that refills of this script moved, beyond one for each group

-- Makes ready a job that its caller took out of the index, with the turn it had or a new one. `crowd`: how many others
-- of its group are ready, and the last of their turns; nil where it has no others.
function hf.become_ready(row, crowd)
    local aging = hf.rule_of(row[QUEUE])[6]
    if not row[TURN] then
        local turn = hf.next_tick()
        if aging then turn = turn - math.floor(row[PRIORITY] * aging * 1000000) end
        if crowd and crowd[1] > 0 then turn = math.max(turn + crowd[1] * STAGGER_TICKS, crowd[2] + 1) end
        if turn > TURN_ZERO or turn < -TURN_ZERO then turn = turn > 0 and TURN_ZERO or -TURN_ZERO end
        row[TURN] = turn
    end
    if crowd then crowd[1], crowd[2] = crowd[1] + 1, math.max(crowd[2], row[TURN]) end
    row[LANE] = hf.lane_of(row) + (aging and 4 or 0) + (crowd and 8 or 0)
    row[STATE] = 'r'
end

-- Brings a due job, which its caller took out of the index, into play: ready, or behind its group until refill.
function hf.enter_play(row, was_in, had_key)
    if row[GROUP] then row[STATE] = 'w' else hf.become_ready(row) end
    hf.enter(row, was_in, had_key)
end

function hf.ids_after(members, length)
    local ids = {}
    for i = 1, #members do ids[i] = sub(members[i], length + 1) end
    return ids
end

function hf.refill_touched()
    while #hf.touched_order > 0 do -- a withdrawal touches its group once more; that second look moves nothing
        local places = hf.touched_order
        hf.touched, hf.touched_order = {}, {}
        hf.refill(places)
    end
end
