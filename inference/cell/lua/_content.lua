-- Helper, included by other scripts. The answer as a stream shows it: content(stream, base) → token ids joined by
-- commas, text, id of the last content entry ('0-0' if none). Entries of epochs below `base` do not count; a `started`
-- without continues:true discards what stood before it.
local function content(stream, base)
  local ids, text, last = {}, {}, '0-0'
  for _, entry in ipairs(redis.call('XRANGE', stream, base .. '-0', '+')) do
    local kind, data, tokens
    for i = 1, #entry[2], 2 do
      local name = entry[2][i]
      if name == 't' then kind = entry[2][i + 1] elseif name == 'd' then data = entry[2][i + 1] else tokens = entry[2][i + 1] end
    end
    if kind == 'started' then
      if cjson.decode(data).continues ~= true then ids, text = {}, {} end
      last = entry[1]
    elseif kind == 'delta' then
      if tokens and tokens ~= '' then ids[#ids + 1] = tokens end
      text[#text + 1] = cjson.decode(data).text
      last = entry[1]
    elseif kind == 'notice' then
      last = entry[1]
    end
  end
  return table.concat(ids, ','), table.concat(text), last
end
