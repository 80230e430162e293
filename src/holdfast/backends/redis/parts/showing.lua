-- showing: whole jobs for the caller: id, record, body, value, errors, progress, as flat lists of packed pieces. Jobs
-- whose record cannot be read are shown, too.

function hf.shown(ids)
    local records, n = {}, #ids
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local pieces = {}
        for i, key in ipairs({ JOBS, BODIES, VALUES, ERRORS, PROGRESS }) do
            pieces[i] = call('HMGET', key, unpack(ids, from, upto))
        end
        for i = 1, upto - from + 1 do
            if pieces[1][i] then
                records[#records + 1] = ids[from + i - 1]
                for j = 1, 5 do records[#records + 1] = pieces[j][i] end
            end
        end
    end
    return records
end
