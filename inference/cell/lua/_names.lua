-- The names of keys, from that of a pool's record: as in keys.py. Those of accounts, reservations, homes, streams, states
-- and channels lack the user, chat or run that they end with. Made once: a name that is sent with each call takes a
-- quarter of a µs, as much as a look into Redis.
local names_known = {}
local function names_of(key)
  local names = names_known[key]
  if names then return names end
  local prefix, pool = string.match(key, '^(.-)pool:(.*)$')
  names = {pool = pool, queue = prefix .. 'queue:' .. pool, leases = prefix .. 'leases:' .. pool,
    owners = prefix .. 'lease-owners:' .. pool, places = prefix .. 'places:' .. pool, workers = prefix .. 'workers:' .. pool,
    room = prefix .. 'room:' .. pool, facts = prefix .. 'worker-facts:' .. pool, open = prefix .. 'open-streams',
    accounts = prefix .. 'account:', reservations = prefix .. 'reservations:', homes = prefix .. 'home:',
    streams = prefix .. 'stream:', states = prefix .. 'stream-state:', channels = prefix .. 'events:',
    out = 'out:' .. pool, tag = 'tag:' .. pool .. ':'}
  names_known[key] = names
  return names
end
