-- propagate: update jobs when those that they wait for end (R84, R85).

-- == part propagation: bring edges in line with their parents' new states, and children with their edges. Bounded.
-- lazy: built when a script first uses one of its names.

-- Processes no more than `most` edges and parents, beginning with the parent that changed first. Returns how many.
-- Parents that ended in this step, or end in this pass, are queued last; only those left over are stored.
function hf.propagate(most)
    local line, done, n = call('ZRANGE', PROPAGATING, 0, most - 1), 0, 1
    local stored, is_ahead = #line, {}
    hf.flush()
    hf.load_rows(line)
    for i = 1, stored do is_ahead[line[i]] = true end
    hf.queue_ended(line, is_ahead)
    while done < most and line[n] do
        local room, parent = most - done, line[n]
        local looked = hf.change_edges(parent, hf.parent_of(parent), room)
        done = done + math.max(1, looked)
        if looked < room then -- else it may have more
            is_ahead[parent] = false
            n = n + 1
        end
        if #hf.ended > 0 then hf.queue_ended(line, is_ahead) end
    end
    hf.store_line(line, n, stored)
    hf.propagates = false -- the next call goes on
    hf.flush()
    hf.save_dependents()
    return done
end

-- Jobs that ended or came back, in their order: those that others wait for are queued.
function hf.queue_ended(line, is_ahead)
    for _, id in ipairs(hf.ended) do
        if is_ahead[id] == false then hf.flush() end -- this pass has changed its edges
        local prefix = hf.escape(id)
        local low, high = '[' .. prefix .. '0', '(' .. prefix .. '2'
        if not is_ahead[id] and call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, 1)[1] then
            line[#line + 1], is_ahead[id] = id, true
        end
    end
    hf.ended = {}
end

-- All queued parents before position n are done; the first ones were stored.
function hf.store_line(line, n, stored)
    local left, m = {}, 0
    for i = math.max(n, stored + 1), #line do
        left[m + 1], left[m + 2], m = format('%.0f', hf.next_tick()), line[i], m + 2
    end
    hf.in_pieces('ZREM', PROPAGATING, line, math.min(n - 1, stored))
    for from = 1, m, ARGUMENTS_MAX do
        call('ZADD', PROPAGATING, 'NX', unpack(left, from, math.min(m, from + ARGUMENTS_MAX - 1)))
    end
end

-- Of one parent: failed edges unless it is dead or cancelled, open ones unless it is live.
function hf.change_edges(parent, row, most)
    if not row then return 0 end
    local prefix, state = hf.escape(parent), row[STATE]
    local low, high = '[' .. prefix .. '0', '(' .. prefix .. '2'
    if state == 'd' or state == 'c' then high = '(' .. prefix .. '1' end
    if hf.live_states[state] then low = '[' .. prefix .. '1' end
    local members, children = call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, most), {}
    for i, member in ipairs(members) do children[i] = sub(member, #prefix + 2) end
    hf.load_rows(children)
    hf.load_dependents(children)
    for i, member in ipairs(members) do
        local before, child = sub(member, #prefix + 1, #prefix + 1), children[i]
        local dependent = hf.dependent_memo[child] or { 1, 0, 'bury', false, false }
        local after = hf.edge_status(state, dependent[DEPENDENT_POLICY])
        hf.put(EDGES, member, false)
        hf.put(EDGES, prefix .. after .. child, '0')
        if byte(child) == WATCHER then
            hf.post('n', parent)
        else
            hf.count_edge(dependent, after == '2' and -1 or 0, (after == '1' and 1 or 0) - (before == '1' and 1 or 0))
            hf.keep_dependent(child, dependent)
            hf.decide_child(child, dependent, parent)
        end
    end
    return #members
end

function hf.count_edge(dependent, pending, failed)
    dependent[DEPENDENT_PENDING] = math.max(0, dependent[DEPENDENT_PENDING] + pending)
    dependent[DEPENDENT_FAILED] = math.max(0, dependent[DEPENDENT_FAILED] + failed)
end

-- Puts a job into the state its edges require: it waits, is due, is dead or cancelled with reason "parent", or comes
-- back. One that was brought into play, ended or rescheduled otherwise is left alone. `parent` is the one that failed,
-- if any.
function hf.decide_child(child, dependent, parent)
    local row, failed = hf.row_of(child), dependent[DEPENDENT_FAILED] > 0
    if not row then return end
    if (row[STATE] == 'd' or row[STATE] == 'c') and row[REASON] == 'parent' and not failed then hf.come_back(row) end
    if row[STATE] ~= 's' or row[DUE_AT] ~= DUE_AFTER_PARENTS then return end
    if failed and dependent[DEPENDENT_POLICY] == 'cancel' then
        local was_in, had_key = hf.leave(row)
        row[REASON] = 'parent'
        hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
        hf.count_ended(row, 'cancelled')
    elseif failed then
        hf.bury_unstarted(row, 'parent', format('text:parent', parent))
        hf.count_ended(row, 'dead')
    elseif dependent[DEPENDENT_PENDING] == 0 then
        local wanted, was_in, had_key = dependent[DEPENDENT_DUE_AT], hf.leave(row)
        row[DUE_AT] = wanted and math.max(now, wanted) or now + (dependent[DEPENDENT_DELAY] or 0)
        if row[EXPIRES_AT] then row[EXPIRES_AT] = row[DUE_AT] + (row[EXPIRES_AT] - DUE_AFTER_PARENTS) end
        hf.enter(row, was_in, had_key)
        hf.to_wake[row[QUEUE]] = true
    end
end

-- A job that ended because of a parent waits again, with fresh budgets and its key, unless another job holds that.
function hf.come_back(row)
    local taken = row[KEY] and hf.key_taken(hf.key_name(row))
    if taken and taken ~= row then return end
    local was_dead = row[STATE] == 'd'
    hf.requeue(row, DUE_AFTER_PARENTS)
    hf.mark(row, { kind = 'revive', text = 'parent' })
    local logical = hf.logical_of(row)
    local letter = was_dead and hf.letter_at(logical)
    if letter and letter.id == row[ID] then
        letter.revived_at, letter.revive_at = now, nil
        hf.keep_letter(logical, letter)
    end
end
