-- report: store progress and log lines of running jobs; a cancel asked for does not refuse them.
-- Takes now, [id, token, progress, text, lines]. Returns one letter each: o, l lost. Fenced by the token.

local LOGS_KEPT_MAX = 200
local answers, ids = {}, {}
for i, report in ipairs(args[2]) do ids[i] = report[1] end
hf.load_rows(ids)

local function add_lines(id, lines)
    local packed = call('HGET', LOGS, id)
    local kept = packed and hf.read(packed) or {}
    for _, text in ipairs(lines) do kept[#kept + 1] = { now, text } end
    local newest = {}
    for i = math.max(1, #kept - LOGS_KEPT_MAX + 1), #kept do newest[#newest + 1] = kept[i] end
    call('HSET', LOGS, id, cpack(newest))
end

for i, report in ipairs(args[2]) do
    local id = report[1]
    answers[i] = hf.fenced(id, report[2]) and 'o' or 'l'
    if answers[i] == 'o' then
        if report[3] or report[4] then
            local packed = call('HGET', PROGRESS, id)
            local progress = packed and hf.read(packed) or { false, false }
            call('HSET', PROGRESS, id, cpack({ report[3] or progress[1], report[4] or progress[2] }))
        end
        if #report[5] > 0 then add_lines(id, report[5]) end
    end
end
return { concat(answers) }
