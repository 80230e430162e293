-- refusing: how a script answers that it did nothing, and why.
-- seldom: built when a script first uses one of its names.

function hf.refused(error, facts) return { 'refused', error, cpack(facts) } end

function hf.refused_sealed() return hf.refused('StoreSealed', { seal = sealed }) end
