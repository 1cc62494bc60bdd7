-- What the scheduler knows of a pool as a whole, in one string: a line 'policy's version tier tier …', then numbers
-- (doubles: a tenth of the time that JSON takes). In a script: pool[N], and of a tier pool[o + TAG], o = pool.of[slug].
-- Weighted start-time fair queueing at both levels; the clock as in WF2Q+ (Bennett and Zhang, 1996), but of service
-- charged. Service and tags are in cost: tokens by their weights.
--   N        runs waiting, begun ones that lost their worker included
--   CLOCK    virtual time of the tiers
--   STEP     what the last claim moves it on by, at the next one
--   SLOTS    runs that all live workers hold at a time
--   HOLD     ms that a run holds one, a moving average
--   FILL     ms that the prefill of one token takes, a moving average
--   CLAIMS, SPAN, LAST  claims and ms in which the pool had a backlog, both fading; when it had one last, else 0
--   SQUEEZE  until when (ms) the free tiers have no more than their floor
--   FADED    when (ms) the tiers' GIVEN and SERVED were faded last
--   MODE to WQ  the policy: 0 normal, 1 shed_free, 2 drain; the others as in policy.py
local N, CLOCK, STEP, SLOTS, HOLD, FILL, CLAIMS, SPAN, LAST, SQUEEZE, FADED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local MODE, DEPTH, FLOOR, DELAY, SLACK, WP, WQ, HEAD = 12, 13, 14, 15, 16, 17, 18, 18
--   WAITING, USERS  runs, and whose                 TAG      start tag of the tier's next run
--   TIME, MOVE  as CLOCK and STEP, of its users      KEPT     users whose next run is kept for a worker
--   SERVED   its runs claimed lately, fading         COST     of a run, a moving average
--   RATIO, KEPT_RATIO, LATER_RATIO  waits experienced to waits foretold: of next runs, of those kept for a worker, and of
--            runs that others may yet overtake
--   OUT      output tokens of a run, a moving average    GIVEN  its service lately, fading
--   WEIGHT, IS_FREE, BOUND  the policy: its share, whether it gives way first, how long its runs may wait (ms). A plan's
--            weight is 1 at least; a smaller one is of jobs, for which nobody waits.
local WAITING, USERS, TAG, TIME, MOVE, KEPT, SERVED, KEPT_RATIO, RATIO, OUT, GIVEN = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local WEIGHT, IS_FREE, BOUND, COST, LATER_RATIO, EACH = 12, 13, 14, 15, 16, 16
local FADE_MS, RATE_MS = 20000, 15000

-- The pools that were saved or kept last, by key. While Redis has what was saved, nothing is to be unpacked.
local saved = {}

local function unpacked(packed)
  if not packed then
    local pool = {0, 0, 0, 0, 2000, 0.2, 0, 0, 0, 0, 0, 0, 1000, 0, 0, 0, 1, 1}
    pool.names, pool.of, pool.version, pool.last = {}, {}, '-', HEAD - EACH
    return pool
  end
  local line = string.find(packed, '\n', 1, true)
  local names, of, version = {}, {}, nil
  for word in string.gmatch(string.sub(packed, 1, line - 1), '%S+') do
    if version then
      of[word] = HEAD + EACH * #names
      names[#names + 1] = word
    else
      version = word
    end
  end
  local pool = {struct.unpack('<' .. string.rep('d', HEAD + EACH * #names), packed, line + 1)}
  pool.names, pool.of, pool.version, pool.last = names, of, version, HEAD + EACH * (#names - 1)
  pool.packed = packed
  return pool
end

-- To look at, or to go on with after it was written.
local function pool_look(key)
  local packed, pool = redis.call('GET', key), saved[key]
  if not pool or pool.packed ~= packed then return unpacked(packed) end
  local copy = {unpack(pool, 1, pool.last + EACH)}
  copy.names, copy.of, copy.version, copy.last = pool.names, pool.of, pool.version, pool.last
  return copy
end

-- To change, and then to save or keep.
local function pool_load(key)
  local packed, pool = redis.call('GET', key), saved[key]
  saved[key] = nil
  if pool and pool.packed == packed then return pool end
  return unpacked(packed)
end

local function pool_write(key, pool)
  if not pool.head then
    pool.head = pool.version .. ' ' .. table.concat(pool.names, ' ') .. '\n'
    pool.format = '<c' .. #pool.head .. string.rep('d', pool.last + EACH)
  end
  pool.packed = struct.pack(pool.format, pool.head, unpack(pool, 1, pool.last + EACH))
  redis.call('SET', key, pool.packed)
end

-- The last that a script does with a pool: it belongs to the next one.
local function pool_save(key, pool)
  pool_write(key, pool)
  saved[key] = pool
end

-- As pool_save, but Redis has it only with the next one that is saved: for scripts that changed nothing, or only what
-- runs have cost and what is learnt of them. That is lost where another release's functions save the pool first, or
-- where these are deleted; what waits must not be.
local function pool_keep(key, pool) saved[key] = pool end

local function tier_of(pool, slug)
  local o = pool.of[slug]
  if not o then
    o = pool.last + EACH
    -- Copies of the pool that are only looked at have the same names.
    local names, of = {unpack(pool.names)}, {[slug] = o}
    for known, its in pairs(pool.of) do of[known] = its end
    names[#names + 1] = slug
    pool.last, pool.names, pool.of, pool.head = o, names, of, nil
    local fresh = {0, 0, 0, 0, 0, 0, 0, 1, 1, 200, 0, 1, 0, 300000, 500, 1}
    for i = 1, EACH do pool[o + i] = fresh[i] end
  end
  return o
end

-- Serve by this policy from now on. A plan without a slug waits as '-'.
local function pool_rule(pool, version, text)
  if version == '' or version == pool.version then return end
  local policy = cjson.decode(text)
  pool.version, pool.head = version, nil
  pool[MODE] = policy.mode == 'drain' and 2 or policy.mode == 'shed_free' and 1 or 0
  pool[DEPTH], pool[FLOOR], pool[DELAY], pool[SLACK] = policy.depth, policy.floor, policy.delay, policy.slack
  pool[WP], pool[WQ] = policy.wp, policy.wq
  for slug, share in pairs(policy.tiers) do
    local o = tier_of(pool, slug)
    pool[o + WEIGHT], pool[o + IS_FREE], pool[o + BOUND] = share.w, share.free and 1 or 0, share.wait
  end
end

local function is_job(pool, o) return pool[o + WEIGHT] < 1 end

local function cost_of(pool, prompt, output) return pool[WP] * prompt + pool[WQ] * output end

-- Service given lately, to all plans and to the free ones. What jobs had, of slots that nobody wanted, is no plan's loss.
local function given(pool, now)
  if now > pool[FADED] then
    local left = math.exp((pool[FADED] - now) / FADE_MS)
    for o = HEAD, pool.last, EACH do
      pool[o + GIVEN], pool[o + SERVED] = pool[o + GIVEN] * left, pool[o + SERVED] * left
    end
    pool[FADED] = now
  end
  local all, free = 0, 0
  for o = HEAD, pool.last, EACH do
    if not is_job(pool, o) then all = all + pool[o + GIVEN] end
    if pool[o + IS_FREE] == 1 then free = free + pool[o + GIVEN] end
  end
  return all, free
end

-- Names of a tier's part of the queue, beginning with `queue`:
--   :u:tier       users whose next run any worker may serve, by start tag
--   :k:tier       users whose next run is kept for the worker that has its chat in memory, by start tag
--   :h:tier:boot  those of them that are kept for this worker, by start tag
--   :x:tier       until when (ms) they are, where it has begun to count
--   :f:tier       hash, user → how many runs of the user wait behind it|the next run's facts, or n:what the user owes|…
--   :l:tier:user  facts of a user's further runs, by since when (ms) they wait
-- and of no tier: :begun, runs that were begun and lost their worker, by since when; :b, hash, run:epoch → their facts.
-- Facts: run:epoch|chat|prompt|output expected|home|tokens cached there|since|wait foretold (ms)|position told|wait told
--   (s)|when (ms)
local FACTS = '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$'

-- The names of a tier, made once: {u = …, k = …, x = …, f = …}.
local names_made = {}
local function tier_names(queue, slug)
  local tiers = names_made[queue]
  if not tiers then
    tiers = {}
    names_made[queue] = tiers
  end
  local names = tiers[slug]
  if not names then
    names = {u = queue .. ':u:' .. slug, k = queue .. ':k:' .. slug, x = queue .. ':x:' .. slug, f = queue .. ':f:' .. slug}
    tiers[slug] = names
  end
  return names
end

-- An entry of :f:, its facts one by one.
local ENTRY = '^(%d+):?([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$'
-- A lease's owner: boot id|tier|user|chat|prompt tokens charged|output tokens charged
local OWNER = '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$'

-- How many wait behind a user's next run, its facts, and what the user owes: it is charged with that run.
local function split(entry)
  local behind, owed, facts = string.match(entry, '^(%d+):?([^|]*)|(.*)$')
  return behind, facts, tonumber(owed) or 0
end

local function join(behind, facts, owed)
  return (owed == 0 and behind or string.format('%d:%.3f', behind, owed)) .. '|' .. facts
end

-- Put a user, whose next run has this home ('' = none), among those who wait.
local function stand(pool, o, queue, slug, user, tag, home)
  local names = tier_names(queue, slug)
  if home == '' then
    redis.call('ZADD', names.u, tag, user)
  else
    pool[o + KEPT] = pool[o + KEPT] + 1
    redis.call('ZADD', names.k, tag, user)
    redis.call('ZADD', queue .. ':h:' .. slug .. ':' .. home, tag, user)
  end
end

local function leave(pool, o, queue, slug, user, home)
  local names = tier_names(queue, slug)
  if home == '' then
    redis.call('ZREM', names.u, user)
  else
    pool[o + KEPT] = pool[o + KEPT] - 1
    redis.call('ZREM', names.k, user)
    redis.call('ZREM', queue .. ':h:' .. slug .. ':' .. home, user)
    redis.call('ZREM', names.x, user)
  end
end

local function tag_of(queue, slug, user, home)
  local names = tier_names(queue, slug)
  return tonumber(redis.call('ZSCORE', home == '' and names.u or names.k, user))
end
