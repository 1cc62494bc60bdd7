-- Where a run stands, and how long it will wait.
-- include: _pool
local CLAIMS_GUESSED = 3
-- What a tier has of the pool at least, for estimates.
local LEAST = 0.01

-- Runs of the pool that are claimed in a ms. Measured while it had a backlog; until enough is, guessed from its slots.
local function pace(pool)
  local guess = math.max(pool[SLOTS], 1) / pool[HOLD]
  return (pool[CLAIMS] + CLAIMS_GUESSED) / (pool[SPAN] + CLAIMS_GUESSED / guess)
end

-- For estimates: what the free tiers' weights are multiplied by. They have their floor at least, and while others are
-- pressed no more. Tiers count that wait or were served lately.
local function favour(pool, now)
  local paid, free = 0, 0
  for o = HEAD, pool.last, EACH do
    if pool[o + WAITING] > 0 or pool[o + SERVED] > 0.01 then
      if pool[o + IS_FREE] == 1 then
        free = free + pool[o + WEIGHT]
      elseif not is_job(pool, o) then
        paid = paid + pool[o + WEIGHT]
      end
    end
  end
  if free == 0 or paid == 0 then return 1 end
  local floor = math.max(pool[FLOOR] / (1 - pool[FLOOR]) * paid, 0.000001)
  return (free < floor or now < pool[SQUEEZE]) and floor / free or 1
end

local function weight_of(pool, o, by) return pool[o + IS_FREE] == 1 and pool[o + WEIGHT] * by or pool[o + WEIGHT] end

local function rank_of(pool, o, queue, slug, tag)
  local names, below = tier_names(queue, slug), '(' .. tag
  local before = redis.call('ZCOUNT', names.u, '-inf', below)
  if pool[o + KEPT] > 0 then before = before + redis.call('ZCOUNT', names.k, '-inf', below) end
  return before
end

-- How long (ms) a run waits before which so many of its own tier's go, itself included, at the pool's `whole` pace.
-- Meanwhile another tier is served as it was lately, or what it has waiting; but it has no more than its weight gives it,
-- that of free ones times `by`. What is looked at is not older than `now`. The arrays stay: making them anew for each
-- run takes as long as the rest.
local rates, waitings, mosts = {}, {}, {}
local function wait_for(pool, o, runs, now, whole, by)
  local is_free, own_weight, own_cost = pool[o + IS_FREE] == 1, pool[o + WEIGHT], pool[o + COST]
  local is_last, bound = is_free and now < pool[SQUEEZE], runs / LEAST
  local fixed, speed, count, frees = runs, whole, 0, own_weight
  for other = HEAD, pool.last, EACH do
    local waiting, served = pool[other + WAITING], pool[other + SERVED]
    if other ~= o and (waiting > 0 or served > 0.01) then
      local paid, weight, most = pool[other + IS_FREE] == 0, pool[other + WEIGHT], bound
      if not paid then frees = frees + weight end
      if not (is_last and paid) or weight < 1 then
        local part = runs * (paid and weight or weight * by) / own_weight * own_cost / pool[other + COST]
        if part < most then most = part end
      end
      count = count + 1
      rates[count], waitings[count], mosts[count] = served / FADE_MS, paid and waiting or 0, most
      fixed = fixed + most
    end
  end
  -- From above: all that their weights would give them; then who takes less than that takes what it wants.
  for _ = 1, count do
    local wait, found = fixed / speed, false
    for i = 1, count do
      local most, waiting = mosts[i], waitings[i]
      if most then
        local wanted = rates[i] * wait
        if wanted < most and waiting < most then
          fixed, found = fixed - most, true
          if wanted < waiting then fixed = fixed + waiting else speed = speed - rates[i] end
          mosts[i] = false
        end
      end
    end
    if not found then break end
  end
  local wait = fixed / speed
  if not is_free then return wait end
  -- What is left for those who give way is the small difference of large numbers: near their floor it is that.
  local most = runs / (whole * math.max(LEAST, pool[FLOOR] * own_weight / frees))
  return wait > 0.75 * most and most or wait
end

-- How many runs of all tiers go before a user's run number `index` (from 0), where `rank` users of its tier are before the
-- user, whose tag is `tag`, and how long it waits for them (ms), as foretold before it is corrected. Until the tier's
-- clock is at the run's own tag others go before it who have yet to come: the clock moves on by a run's cost when as many
-- have been served as users wait; but no more are served than wait or come. Returns as well whether it is such a run.
local function place(pool, o, rank, index, tag, now)
  given(pool, now)
  local whole, by = pace(pool), pool[o + IS_FREE] == 1 and 1 or favour(pool, now)
  local due = index + math.max(0, tag - pool[o + TIME]) / pool[o + COST]
  local ahead = rank + due * math.max(1, pool[o + USERS])
  local wait = wait_for(pool, o, ahead + 1, now, whole, by)
  local there = math.max(rank, pool[o + WAITING] - 1)
  if ahead > there then
    local left = 1 - pool[o + SERVED] / FADE_MS * wait / (ahead + 1)
    if left > 0 and there / left < ahead then
      ahead = there / left
      wait = wait_for(pool, o, ahead + 1, now, whole, by)
    end
  end
  return math.floor(math.max(0, wait * whole - 1) + 0.000001), wait, due >= 0.5
end

-- Which of the tier's ratios corrects a run's estimate.
local function ratio_of(is_later, home) return is_later and LATER_RATIO or home ~= '' and KEPT_RATIO or RATIO end

-- Small waits are off by some time, long ones by some part of it.
local OFF_MS = 500
local function foretold(pool, o, wait, ratio)
  return math.max(0, (wait + OFF_MS) * pool[o + ratio] - OFF_MS)
end

-- Learn from a wait that is over: down the slope of the error relative to the wait, or to a second.
local function learn(pool, o, told, waited, ratio)
  local said = foretold(pool, o, told, ratio)
  local step = 0.005 * math.min(2, (said + OFF_MS) / (math.max(waited, 1000) + OFF_MS))
  pool[o + ratio] = math.min(4, math.max(0.25, pool[o + ratio] * (said < waited and 1 + step or 1 - step)))
end

-- As people are told it, and JSON says it: in seconds, with a tenth where that matters.
local function seconds(ms)
  if ms < 10000 then return string.format('%.1f', ms / 1000) end
  return string.format('%.0f', ms / 1000)
end
