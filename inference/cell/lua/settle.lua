-- End a reservation and count what it used. Settling twice counts once.
-- KEYS  1 account  2 reservations  3 holders
-- ARGV  1 user  2 admission id  3 tokens used
-- Returns 1 when the reservation was there, else 0.
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], 'used', ARGV[3])
if redis.call('HLEN', KEYS[2]) == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return 1
