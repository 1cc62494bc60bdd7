-- Confirm an accepted turn's reservation, put its run into the queue and, at the first epoch of its admission, open a
-- fresh stream that says where it stands. Doing it again changes nothing.
-- KEYS  1 pool
-- ARGV  1 each ended by a zero byte: run, epoch, base epoch, admission id, waits since (ms), user, tier ('-' = none), chat,
--         prompt tokens, most output tokens, now (ms), worker's time to live (ms), stream's time to live (ms)
--       2 policy's version, or '': the one that is known  3 policy (JSON)
-- Returns 'position|wait in seconds|boot id of a worker with room, or nothing'; position 0 = next to be served.
-- include: _names
-- include: _pool
-- include: _place
-- include: _correct

local HEARD_MS = 250

-- Alive is who told so after `silent` (ms).
local function alive(names, silent, boot)
  local beat = redis.call('ZSCORE', names.workers, boot)
  return beat and tonumber(beat) > silent
end

-- A worker that has room, and for how many runs: this one if it has, else the one with the most.
local function with_room(names, silent, boot)
  local own = boot ~= '' and tonumber(redis.call('ZSCORE', names.room, boot) or '0') or 0
  if own >= 1 then return boot, own end
  for _ = 1, 4 do
    local top = redis.call('ZREVRANGE', names.room, 0, 0, 'WITHSCORES')
    if #top == 0 or tonumber(top[2]) < 1 then return '', 0 end
    if alive(names, silent, top[1]) then return top[1], tonumber(top[2]) end
    redis.call('ZREM', names.room, top[1])
  end
  return '', 0
end

-- The worker that has the chat in its memory, and how much of the prompt.
local function find_home(names, pool, silent, chat, prompt)
  local was = pool[DELAY] > 0 and redis.call('GET', names.homes .. chat)
  if not was then return '', 0 end
  local boot, tokens, filled = string.match(was, '^([^|]*)|([^|]*)|([^|]*)$')
  local memory, computed = string.match(redis.call('HGET', names.facts, boot) or '', '^[^|]*|([^|]*)|([^|]*)$')
  -- What it has computed since may have pushed the chat out of its memory.
  if not memory or computed - filled + tokens > tonumber(memory) or not alive(names, silent, boot) then return '', 0 end
  return boot, math.min(tonumber(tokens), prompt - 1)
end

-- How many runs wait for any worker besides the one that has come.
local function others_of(pool)
  local others = pool[N] - 1
  for o = HEAD, pool.last, EACH do others = others - pool[o + KEPT] end
  return others
end

-- Whether turns wait, besides those that were begun.
local function has_turns(pool)
  for o = HEAD, pool.last, EACH do
    if pool[o + WAITING] > 0 and not is_job(pool, o) then return true end
  end
  return false
end

-- Where it stands already, if it does.
local function known(pool, names, line, entry, member)
  local waiting = 0
  for o = HEAD, pool.last, EACH do waiting = waiting + pool[o + WAITING] end
  if waiting < pool[N] and redis.call('HEXISTS', names.queue .. ':b', member) == 1 then return 'begun' end
  if not entry then return nil end
  local _, facts = split(entry)
  if string.sub(facts, 1, #member + 1) == member .. '|' then return facts end
  for _, other in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if string.sub(other, 1, #member + 1) == member .. '|' then return other end
  end
  return nil
end

-- Whether some worker has claimed it and is about to say so in the database: true or false; or nil of one that died
-- before it did. That one did nothing, and what it was charged is given back.
local function claimed(names, pool, now, member, user)
  local lease = redis.call('ZSCORE', names.leases, member)
  if not lease then return false end
  if tonumber(lease) >= now then return true end
  local owner = redis.call('HGET', names.owners, member)
  redis.call('ZREM', names.leases, member)
  redis.call('HDEL', names.owners, member)
  if owner then
    local _, its, whose, _, asked, output = string.match(owner, OWNER)
    local more = correct(pool, names.queue, its, whose, cost_of(pool, tonumber(asked), tonumber(output)), 0)
    local account = names.accounts .. user
    if more and whose == user and redis.call('HEXISTS', account, 'gen') == 1 then
      redis.call('HINCRBYFLOAT', account, names.tag .. its, more)
    end
  end
  return nil
end

-- at each call:
local names = names_of(KEYS[1])
local run, epoch, base, admission, since, user, slug, chat, prompt, most, at, worker_ms, stream_ms =
  struct.unpack('sssssssssssss', ARGV[1])
local now, silent = tonumber(at), at - worker_ms
local queue, member, is_fresh = names.queue, run .. ':' .. epoch, epoch == base
local reservations, is_news = names.reservations .. user, false
local held = redis.call('HGET', reservations, admission)
if held then
  local hold, state, made = string.match(held, '^(.*)|(%d)|(%d+)$')
  if state ~= '1' then
    -- Nobody has enqueued it before.
    is_news = is_fresh
    redis.call('HSET', reservations, admission, hold .. '|1|' .. made)
  end
end
redis.call('ZREM', names.places, admission)
local pool = pool_load(KEYS[1])
local version = pool.version
pool_rule(pool, ARGV[2], ARGV[3])
local o, tier = tier_of(pool, slug), tier_names(queue, slug)
local position, wait, told, direct, line = '0', '0', 0, '', queue .. ':l:' .. slug .. ':' .. user

local entry = redis.call('HGET', tier.f, user)
local is_next, is_new, home_told, stands, is_leased = true, false, nil, nil, false
if not is_news then
  stands = known(pool, names, line, entry, member)
  if not stands then is_leased = claimed(names, pool, now, member, user) end
end
if stands then
  if stands ~= 'begun' then
    position, wait = select(9, string.match(stands, FACTS))
  end
elseif not is_leased and not is_fresh and not is_job(pool, o) then
  -- An answer that was begun is somebody's pause: it goes on before new ones begin, and is paid for already. A job's is
  -- nobody's: it waits as it did before.
  redis.call('ZADD', queue .. ':begun', since, member)
  redis.call('HSET', queue .. ':b', member, table.concat({slug, user, chat, prompt,
    math.ceil(math.min(pool[o + OUT], most))}, '|'))
  pool[N] = pool[N] + 1
  is_new = true
  direct = with_room(names, silent, '')
elseif not is_leased then
  is_new = true
  -- It may owe less now, by what a claim had cost that came to nothing.
  if is_leased == nil then entry = redis.call('HGET', tier.f, user) end
  local own = redis.call('HMGET', names.accounts .. user, names.out, names.tag .. slug)
  local expected = math.min(tonumber(own[1] or pool[o + OUT]), tonumber(most))
  local home, cached = find_home(names, pool, silent, chat, prompt)
  home_told = home
  -- A clock that is one claim late lets newcomers pass those who were served and wait again. Where nobody waits, it would
  -- put whoever comes first ahead of all who come after the next claim, by what the last one cost.
  if not has_turns(pool) then pool[CLOCK], pool[STEP] = pool[CLOCK] + pool[STEP], 0 end
  if pool[o + USERS] == 0 then pool[o + TIME], pool[o + MOVE] = pool[o + TIME] + pool[o + MOVE], 0 end
  if pool[o + WAITING] == 0 then pool[o + TAG] = math.max(pool[o + TAG], pool[CLOCK]) end
  pool[N], pool[o + WAITING] = pool[N] + 1, pool[o + WAITING] + 1
  local tag, index, behind, first, owed = nil, 0, nil, nil, 0
  if entry then
    behind, first, owed = split(entry)
    behind = tonumber(behind)
    index, is_next = behind + 1, false
    local its_home, _, its_since = select(5, string.match(first, FACTS))
    tag = tag_of(queue, slug, user, its_home)
    if tonumber(since) < tonumber(its_since) then
      -- It has waited for longer than the user's others: whoever it is kept for, they are.
      index, is_next = 0, true
      leave(pool, o, queue, slug, user, its_home)
      -- What was given back is its own: the charge of a claim that came to nothing.
      local back = math.min(owed, 0)
      tag, owed = tag + back, owed - back
      stand(pool, o, queue, slug, user, tag, home)
    end
  else
    -- Those who come between two claims keep their order.
    pool[o + TIME] = pool[o + TIME] + 0.001
    tag = math.max(tonumber(own[2] or '0'), pool[o + TIME])
    pool[o + USERS] = pool[o + USERS] + 1
    stand(pool, o, queue, slug, user, tag, home)
  end
  local free
  direct, free = with_room(names, silent, home)
  -- With room for it, it waits for nobody: those before it have room as well, or are kept for their homes. Where more
  -- wait than have room, they have been told of it already.
  if direct == '' or (direct ~= home and others_of(pool) >= free) then
    local before, is_later
    before, told, is_later = place(pool, o, rank_of(pool, o, queue, slug, tag), index, tag + owed, now)
    position = string.format('%d', before)
    wait = seconds(foretold(pool, o, told, ratio_of(is_later, home)))
    if is_later then told = -told end
  end
  local facts = member .. '|' .. chat .. '|' .. prompt .. '|' .. math.ceil(expected) .. '|' .. home .. '|' .. cached .. '|'
    .. since .. '|' .. string.format('%.0f', told) .. '|' .. position .. '|' .. wait .. '|' .. at
  if entry and index == 0 then
    redis.call('HSET', tier.f, user, join(behind + 1, facts, owed))
    redis.call('ZADD', line, (select(7, string.match(first, FACTS))), first)
  elseif entry then
    redis.call('HSET', tier.f, user, join(behind + 1, first, owed))
    redis.call('ZADD', line, since, facts)
  else
    redis.call('HSET', tier.f, user, '0|' .. facts)
  end
end
if direct ~= '' and direct == home_told and is_next then
  -- Nobody else takes it until its home has had the time to hear of it.
  redis.call('ZADD', tier.x, now + HEARD_MS, user)
end
if direct ~= '' then redis.call('ZADD', names.room, 'XX', 'INCR', -1, direct) end
if is_new or pool.version ~= version then pool_save(KEYS[1], pool) else pool_keep(KEYS[1], pool) end

if is_fresh then
  local stream, state = names.streams .. run, names.states .. run
  local fresh = epoch .. '|wait|0-0|'
  local latest = redis.call('SET', state, fresh, 'NX', 'GET', 'PX', stream_ms)
  if not latest or tonumber(string.match(latest, '^%d+')) < tonumber(epoch) then
    if latest then
      redis.call('DEL', stream)
      redis.call('SET', state, fresh, 'PX', stream_ms)
    end
    redis.call('SADD', names.open, run)
    local data = '{"position":' .. position .. ',"wait_seconds":' .. wait .. ',"pool":"' .. names.pool .. '"'
      .. (epoch == '1' and '}' or ',"reason":"retry"}')
    redis.call('XADD', stream, '0-1', 't', 'queued', 'd', data)
    redis.call('PEXPIRE', stream, stream_ms)
    redis.call('PUBLISH', names.channels .. run, '0-1\nqueued\n' .. data)
  end
end
return position .. '|' .. wait .. '|' .. direct
