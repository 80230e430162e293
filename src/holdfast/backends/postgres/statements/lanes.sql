-- lanes: in which lane of its queue a ready job stands, and where in it: by priority, or with aging by age and priority.
-- Lanes: 0 ungrouped, 1 grouped, 2 parked (its task is paused), 3 and above one per task with a limit or rate.
-- All of it is also in formulas.py. Concurrency: the caller shares the rules.

-- :: fragment lane(task, grp)
-- The lane of one job: formulas.lane.
CASE WHEN EXISTS (SELECT FROM holdfast.pauses p WHERE p.kind = 'task' AND p.queue = '' AND p.name = @task) THEN 2
     ELSE coalesce((SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = @task),
                   CASE WHEN @grp IS NULL THEN 0 ELSE 1 END) END

-- :: fragment lane_in_bulk(task, grp)
-- The same for many jobs of a statement: it reads once which tasks are paused or have their own lane, and looks up the
-- lanes of those only. For a single job it would read all their names in vain.
CASE WHEN @is_parked(@task) THEN 2
     WHEN @task = ANY (ARRAY(SELECT b.name FROM holdfast.bounds b WHERE b.kind = 'task'))
     THEN (SELECT b.lane FROM holdfast.bounds b WHERE b.kind = 'task' AND b.name = @task)
     WHEN @grp IS NULL THEN 0 ELSE 1 END

-- :: fragment is_parked(task)
@task = ANY (ARRAY(SELECT p.name FROM holdfast.pauses p WHERE p.kind = 'task'))

-- :: fragment rank(priority, aging)
-- formulas.rank
CASE WHEN (@aging) >= 0 THEN 0 ELSE @priority END

-- :: fragment age_shift(priority, aging)
-- By how many ticks a priority moves a turn forward: formulas.age_shift. No aging is NULL, which `greatest` ignores.
floor(@priority * greatest(@aging, 0) * 1000000)::bigint

-- :: fragment turn(tick, priority, aging)
-- The turn of a job without a group: formulas.turn. It takes the tick once, which may be a nextval.
CASE WHEN (@aging) < 0 THEN -(@tick) ELSE (@tick) - @age_shift(@priority, @aging) END

-- :: function_lane_of
CREATE OR REPLACE FUNCTION holdfast.lane_of(named text, grp text) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT (@lane(named, grp))::smallint
$$

-- :: function_rank_of
CREATE OR REPLACE FUNCTION holdfast.rank_of(queued text, priority integer) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT @rank(priority, (SELECT b.aging FROM holdfast.bounds b WHERE b.kind = 'queue' AND b.name = queued))
$$

-- :: function_turn_of
CREATE OR REPLACE FUNCTION holdfast.turn_of(tick bigint, queued text, priority integer) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT @turn(tick, priority, b.aging) FROM (SELECT) one
    LEFT JOIN holdfast.bounds b ON b.kind = 'queue' AND b.name = queued
$$
