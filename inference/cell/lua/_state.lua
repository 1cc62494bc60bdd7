-- A stream's state is one string: epoch|mode|last|first, as keys.py names them. As fields of a hash it took three calls to
-- make where this takes one.
-- state_of(key) → the four, all text, first '' where there is none yet; nil: no state
local function state_of(key)
  local state = redis.call('GET', key)
  if state then return string.match(state, '^([^|]*)|([^|]*)|([^|]*)|(.*)$') end
end

-- It lives as long as before, or for `ttl` (ms).
local function set_state(key, epoch, mode, last, first, ttl)
  local state = epoch .. '|' .. mode .. '|' .. last .. '|' .. first
  if ttl then redis.call('SET', key, state, 'PX', ttl) else redis.call('SET', key, state, 'KEEPTTL') end
end
