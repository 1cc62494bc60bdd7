-- How many runs a pool's live workers hold in all, for estimates.
-- Facts: boot id → slots|tokens of memory|tokens computed.
-- include: _pool
local function change_slots(key, by)
  if by == 0 then return end
  local pool = pool_load(key)
  pool[SLOTS] = math.max(0, pool[SLOTS] + by)
  pool_save(key, pool)
end

local function slots_in(facts) return facts and tonumber(string.match(facts, '^%d+')) or 0 end

local function set_slots(key, facts, boot, slots, memory, computed)
  local before = redis.call('HGET', facts, boot)
  redis.call('HSET', facts, boot, slots .. '|' .. memory .. '|' .. computed)
  change_slots(key, slots - slots_in(before))
end

local function drop_slots(key, room, facts, boot)
  local before = redis.call('HGET', facts, boot)
  if not before then return end
  redis.call('ZREM', room, boot)
  redis.call('HDEL', facts, boot)
  change_slots(key, -slots_in(before))
end
