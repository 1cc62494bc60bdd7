-- Where a run stands, and how long it will wait.
-- include: _pool
local CLAIMS_GUESSED = 3

-- Runs of the pool that are claimed in a ms. Measured while it had a backlog; until enough is, guessed from its slots.
local function pace(pool)
  local guess = math.max(pool[SLOTS], 1) / pool[HOLD]
  return (pool[CLAIMS] + CLAIMS_GUESSED) / (pool[SPAN] + CLAIMS_GUESSED / guess)
end

-- For estimates: what the free tiers' weights are multiplied by, and all weights of tiers that wait. The free ones have
-- their floor at least, and while others are pressed no more.
local function favour(pool, now)
  local paid, free = 0, 0
  for _, slug in ipairs(pool.names) do
    local o = pool.of[slug]
    if pool[o + WAITING] > 0 then
      if pool[o + IS_FREE] == 1 then free = free + pool[o + WEIGHT] else paid = paid + pool[o + WEIGHT] end
    end
  end
  if free == 0 or paid == 0 then return 1, free + paid end
  local floor = math.max(pool[FLOOR] / (1 - pool[FLOOR]) * paid, 0.000001)
  local by = 1
  if free < floor or now < pool[SQUEEZE] then by = floor / free end
  return by, free * by + paid
end

local function weight_of(pool, o, by) return pool[o + IS_FREE] == 1 and pool[o + WEIGHT] * by or pool[o + WEIGHT] end

local function coming(pool, o, now)
  return pool[o + CAME] * math.exp(math.min(0, pool[o + CAME_AT] - now) / RATE_MS) / RATE_MS
end

-- How many runs of the tier go before a user's run number `index` (from 0), where `rank` users are before the user and
-- its tag is `tag`. Of those who wait each may have as many served meanwhile. Those who come meanwhile go before what is
-- not due by the tier's clock yet: of the tier's pace a user has its part, or, if that is more, its part of what those
-- leave who come with one run each. Returns as well whether it is such a later one, of which less is certain.
local function ahead_of(pool, o, rank, index, tag, now)
  local here = math.min(math.max(0, pool[o + WAITING] - 1), rank + index * math.max(1, pool[o + USERS]))
  local due = index + math.max(0, tag - pool[o + TIME]) / pool[o + COST]
  if due < 0.5 then return here, false end
  local by, all = favour(pool, now)
  local speed, others = pace(pool), 0
  for _, slug in ipairs(pool.names) do
    if pool.of[slug] ~= o then others = others + coming(pool, pool.of[slug], now) end
  end
  local mine = weight_of(pool, o, by) / (pool[o + WAITING] > 0 and all or all + weight_of(pool, o, by))
  local left = 1 - coming(pool, o, now) / math.max(speed * mine, speed - others)
  local part = math.max(left / math.max(1, pool[o + MANY]), 1 / math.max(1, pool[o + USERS]))
  return math.max(here, due / math.min(1, part)), true
end

local function rank_of(pool, o, queue, slug, tag)
  local before = redis.call('ZCOUNT', queue .. ':u:' .. slug, '-inf', '(' .. tag)
  if pool[o + KEPT] > 0 then before = before + redis.call('ZCOUNT', queue .. ':k:' .. slug, '-inf', '(' .. tag) end
  return before
end

-- How many runs go before one with `ahead` of its own tier's, and how long it waits for them (ms), as foretold before
-- the tier's own correction. Meanwhile another tier has what its weight gives it, but no more runs than wait or come.
local function place(pool, o, ahead, now)
  local by = favour(pool, now)
  local mine, speed = weight_of(pool, o, by), pace(pool)
  local before, wait = ahead, (ahead + 1) / speed
  for _ = 1, 3 do
    before = ahead
    for _, slug in ipairs(pool.names) do
      local other = pool.of[slug]
      if other ~= o and (pool[other + WAITING] > 0 or pool[other + CAME] > 0.01) then
        before = before + math.min(pool[other + WAITING] + coming(pool, other, now) * wait,
          (ahead + 1) * weight_of(pool, other, by) / mine)
      end
    end
    wait = (before + 1) / speed
  end
  return math.floor(before), wait
end

local function foretold(pool, o, wait) return wait * pool[o + RATIO] end

-- As people are told it, and JSON says it: in seconds, with a tenth where that matters.
local function seconds(ms)
  if ms < 10000 then return string.format('%.1f', ms / 1000) end
  return string.format('%.0f', ms / 1000)
end
