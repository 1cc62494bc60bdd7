-- Take the run that this worker serves best and lease it: one that was begun before, else the next of the tier and the
-- user that have had least, where the worker that has the chat in memory goes before others within bounds.
-- KEYS  1 pool
-- ARGV  1 boot id
--       2 numbers, as doubles: now (ms), tokens that its engine has room for, lease (ms), worker's time to live (ms), 1 where
--         one of its free slots was counted as taken when it was told of a run, else 0
-- Returns 'run:epoch' | ms after which to ask again, as a number: what waits is kept for another worker, or needs more
--       room than it has | false: nothing waits.
-- include: _names
-- include: _pool
-- include: _place

-- Lease it, and count it as claimed.
local function lease(key, names, pool, now, lease_ms, boot, member, owner)
  redis.call('ZADD', names.leases, now + lease_ms, member)
  redis.call('HSET', names.owners, member, owner)
  redis.call('ZADD', names.room, 'XX', 'INCR', -1, boot)
  if pool[LAST] > 0 then
    local passed = math.max(0, now - pool[LAST])
    local left = math.exp(-passed / RATE_MS)
    pool[CLAIMS], pool[SPAN] = pool[CLAIMS] * left + 1, pool[SPAN] * left + passed
  end
  pool[N] = pool[N] - 1
  pool[LAST] = pool[N] > 0 and now or 0
  pool_save(key, pool)
  return member
end

-- By then its engine has told anew.
local FULL_MS = 250
local function full(key, names, pool, boot)
  redis.call('ZADD', names.room, 'XX', 0, boot)
  pool_save(key, pool)
  return FULL_MS
end

-- What does not fit now, other runs may pass for so long; after that its place is kept free for it. One that is larger
-- than all of this worker's memory waits for another worker.
local PASSED_MS = 2000
local function is_held_up(names, now, boot, needed, since)
  if now - since <= PASSED_MS then return false end
  local memory = tonumber(string.match(redis.call('HGET', names.facts, boot) or '', '^[^|]*|([^|]*)|'))
  return not memory or needed <= memory
end

local function first_of(name) return unpack(redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')) end

-- Tiers with a backlog: an array to work in, not made at each call.
local order, HUGE = {}, 1 / 0

-- How many runs wait behind a user's next one, what the user owes ('' = nothing), and the facts.
local function facts_of(tier, user) return string.match(redis.call('HGET', tier.f, user), ENTRY) end

-- A run is kept for its home until one of its slots has surely come free for it: by so many more of them than there are
-- others kept there before it.
local SURE = 1

-- Until when (ms) a user's run is kept for its home from now on.
local function kept_until(names, pool, now, silent, slug, user, home, cached)
  local beat = redis.call('ZSCORE', names.workers, home)
  local slots = tonumber(string.match(redis.call('HGET', names.facts, home) or '', '^%d+')) or 0
  if not beat or tonumber(beat) <= silent or slots == 0 then return now end
  -- The prefill that is saved is a whole worker's time, an idle slot a part of one's: so long it is worth it.
  local delay = math.min(pool[DELAY], cached * pool[FILL] * slots)
  local turn = redis.call('ZRANK', names.queue .. ':h:' .. slug .. ':' .. home, user) + 1
  local sure = (turn + SURE) * pool[HOLD] / slots
  return now + (delay < sure and 0 or math.ceil(sure))
end

-- Of the first few users whose runs are kept for other workers, those that are passed over now begin to count down, all
-- together, or each idle slot would wait for each of them. Returns one that has had its time, or whose home is gone, and
-- its tag; else nil, and in how many ms the first of them will have.
local function overdue(names, pool, now, silent, boot, slug, before)
  local tier, soonest = tier_names(names.queue, slug), nil
  local kept = redis.call('ZRANGE', tier.k, 0, 3, 'WITHSCORES')
  for i = 1, #kept, 2 do
    if before and tonumber(kept[i + 1]) > before then break end
    local home, cached = select(7, facts_of(tier, kept[i]))
    if home ~= boot then
      local ends = tonumber(redis.call('ZSCORE', tier.x, kept[i]))
      if not ends then
        ends = kept_until(names, pool, now, silent, slug, kept[i], home, cached)
        redis.call('ZADD', tier.x, ends, kept[i])
      end
      if ends <= now then return kept[i], tonumber(kept[i + 1]) end
      soonest = math.min(soonest or ends, ends)
    end
  end
  return nil, soonest and soonest - now
end

-- Which user of a tier this worker serves, its tag, and the least tag of all; or nil, and how long to wait. Those whose
-- chats it has in memory may go first by so much as the policy's slack; those kept for others may be passed over. Where
-- none is kept, the user is taken out already: a call less, as mostly the run is claimed.
local function choose(names, pool, now, silent, boot, slug)
  local o, tier = pool.of[slug], tier_names(names.queue, slug)
  if pool[o + KEPT] == 0 then
    local first, its = unpack(redis.call('ZPOPMIN', tier.u))
    its = tonumber(its)
    return first, its, its
  end
  local free, tag = first_of(tier.u)
  tag = tonumber(tag)
  local _, kept_tag = first_of(tier.k)
  local least = math.min(tag or math.huge, tonumber(kept_tag))
  local mine, its = first_of(names.queue .. ':h:' .. slug .. ':' .. boot)
  its = tonumber(its)
  local slack = math.min(pool[SLACK], pool[DELAY] / 4 * pace(pool) * pool[o + COST] / pool[o + USERS])
  if mine and (not tag or its <= tag + slack) then return mine, its, least end
  local late, late_tag = overdue(names, pool, now, silent, boot, slug, tag)
  if late then return late, late_tag, least end
  if free then return free, tag, least end
  return nil, late_tag
end

-- Which of two tiers is served first. While turns are pressed, those of free plans still come before jobs.
local function goes_before(pool, a, b, free_first, free_last)
  local one, other = pool.of[a], pool.of[b]
  if free_last and is_job(pool, one) ~= is_job(pool, other) then return is_job(pool, other) end
  if (free_first or free_last) and pool[one + IS_FREE] ~= pool[other + IS_FREE] then
    return (pool[one + IS_FREE] == 1) == free_first
  end
  if pool[one + TAG] ~= pool[other + TAG] then return pool[one + TAG] < pool[other + TAG] end
  return a < b
end

-- at each call:
local names, boot = names_of(KEYS[1]), ARGV[1]
local now, room, lease_ms, worker_ms, expected = struct.unpack('<ddddd', ARGV[2])
if expected == 1 then redis.call('ZADD', names.room, 'XX', 'INCR', 1, boot) end
local pool = pool_load(KEYS[1])
if pool[N] == 0 then
  pool_keep(KEYS[1], pool)
  return false
end
local queue, silent = names.queue, now - worker_ms
local is_tight = false

local waiting = 0
for o = HEAD, pool.last, EACH do waiting = waiting + pool[o + WAITING] end
if waiting < pool[N] then
  local begun, since = unpack(redis.call('ZRANGE', queue .. ':begun', 0, 0, 'WITHSCORES'))
  if begun then
    local slug, user, chat, prompt, output =
      string.match(redis.call('HGET', queue .. ':b', begun), '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
    if prompt + output <= room then
      redis.call('ZREM', queue .. ':begun', begun)
      redis.call('HDEL', queue .. ':b', begun)
      return lease(KEYS[1], names, pool, now, lease_ms, boot, begun, table.concat({boot, slug, user, chat, 0, 0}, '|'))
    end
    if is_held_up(names, now, boot, prompt + output, since) then return full(KEYS[1], names, pool, boot) end
    is_tight = true
  else
    pool[N] = waiting
  end
end

-- Tiers with a backlog, the one that has had least first. By what was given lately, not by their weights, free ones come
-- before all others while they have less than their floor, and after them while others are pressed.
local all_given, free_given = given(pool, now)
local free_part = all_given > 0 and free_given / all_given or pool[FLOOR]
local free_first, free_last = free_part < pool[FLOOR], now < pool[SQUEEZE]
local count, weights, least_tag, least_free = 0, 0, HUGE, HUGE
for _, slug in ipairs(pool.names) do
  local one = pool.of[slug]
  if pool[one + WAITING] > 0 then
    local its = pool[one + TAG]
    count = count + 1
    order[count] = slug
    weights = weights + pool[one + WEIGHT]
    if its < least_tag then least_tag = its end
    if its < least_free and pool[one + IS_FREE] == 1 then least_free = its end
  end
end

-- The next of the first tier that has one for this worker. Mostly that is the very first: they are not sorted before.
local slug, tier, user, tag, least, behind, owed, member, chat, prompt, output, home, cached, since, told, again
for left = count, 1, -1 do
  local first = left
  for i = 1, left - 1 do
    if goes_before(pool, order[i], order[first], free_first, free_last) then first = i end
  end
  local one = order[first]
  order[first], order[left] = order[left], one
  user, tag, least = choose(names, pool, now, silent, boot, one)
  if user then
    slug, tier = one, tier_names(queue, one)
    behind, owed, member, chat, prompt, output, home, cached, since, told = facts_of(tier, user)
    if prompt + output <= room then break end
    if pool[pool.of[one] + KEPT] == 0 then redis.call('ZADD', tier.u, tag, user) end
    if is_job(pool, pool.of[one]) then
      -- No place is kept free for it, and the worker has room for others.
      again = math.min(again or FULL_MS, FULL_MS)
    else
      if is_held_up(names, now, boot, prompt + output, since) then return full(KEYS[1], names, pool, boot) end
      is_tight = true
    end
    user = nil
  elseif tag then
    again = math.min(again or tag, tag)
  end
end
if not user then
  if is_tight then return full(KEYS[1], names, pool, boot) end
  pool_save(KEYS[1], pool)
  return again or false
end

local o, charged = pool.of[slug], home == boot and prompt - cached or prompt
local cost = cost_of(pool, charged, output)
-- The tiers' clock, then this tier's own. Jobs that wait alone do not move it on: divided by their small weight, what one
-- costs is more than plans get in minutes, and those who come next would be that far behind whoever comes first. What the
-- free ones had or had not because of their floor, the clock forgets; among each other they stay as they are.
pool[CLOCK] = math.max(pool[CLOCK] + pool[STEP], least_tag)
pool[STEP] = weights < 1 and 0 or cost / weights
if least_free < HUGE and (free_first or free_last) then
  for i = 1, count do
    local other = pool.of[order[i]]
    if pool[other + IS_FREE] == 1 then pool[other + TAG] = pool[other + TAG] + pool[CLOCK] - least_free end
  end
end
pool[o + TAG] = pool[o + TAG] + cost / pool[o + WEIGHT]
pool[o + TIME] = math.max(pool[o + TIME] + pool[o + MOVE], least)
pool[o + MOVE] = cost / math.max(1, pool[o + USERS])
pool[o + COST] = pool[o + COST] + (cost - pool[o + COST]) * 0.02
pool[o + GIVEN], pool[o + SERVED] = pool[o + GIVEN] + cost, pool[o + SERVED] + 1
pool[o + WAITING] = pool[o + WAITING] - 1
told = tonumber(told)
if told ~= 0 then learn(pool, o, math.abs(told), now - since, ratio_of(told < 0, home)) end
if pool[o + KEPT] > 0 then leave(pool, o, queue, slug, user, home) end
local after = tag + cost + (tonumber(owed) or 0)
behind = tonumber(behind)
if behind > 0 then
  local following = redis.call('ZPOPMIN', queue .. ':l:' .. slug .. ':' .. user)[1]
  redis.call('HSET', tier.f, user, join(behind - 1, following, 0))
  stand(pool, o, queue, slug, user, after, (select(5, string.match(following, FACTS))))
else
  pool[o + USERS] = pool[o + USERS] - 1
  redis.call('HDEL', tier.f, user)
  -- Not of an account that is gone, or was never there.
  local account = names.accounts .. user
  if redis.call('HEXISTS', account, 'gen') == 1 then
    redis.call('HSET', account, names.tag .. slug, string.format('%.3f', after))
  end
end
return lease(KEYS[1], names, pool, now, lease_ms, boot, member,
  boot .. '|' .. slug .. '|' .. user .. '|' .. chat .. '|' .. charged .. '|' .. output)
