-- What tshark and Wireshark don't know of Ferroce's packets: telemetry as HPCC INT, INT-MD, IFA, AECN and CSIG, and the opcodes
-- from 0xC0 on. IOAM they read themselves.
--
--   tshark -X lua_script:scripts/ferroce.lua -r capture.pcap -V
--
-- The layouts are those of docs/reference/wire.md and roce/src/wire/format/README.md.

local rocev2 = DissectorTable.get("udp.port"):get_dissector(4791)

local RATES = { [0] = "25 Gb/s", "50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s", "10 Mb/s", "100 Mb/s", "200 Mb/s",
  "500 Mb/s", "1 Gb/s", "2.5 Gb/s", "5 Gb/s", "10 Gb/s", "40 Gb/s", "800 Gb/s" }
local IFA_RATES = { [0] = "10 Gb/s", "25 Gb/s", "40 Gb/s", "50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s", "10 Mb/s",
  "100 Mb/s", "200 Mb/s", "500 Mb/s", "1 Gb/s", "2.5 Gb/s", "5 Gb/s", "800 Gb/s" }
local KINDS = { [0] = "busiest hop", "window", "in-flight share", "ready", "hop", "hop and flows",
  "all hops" }
local OPCODES = { [0xc0] = "telemetry request", [0xc1] = "telemetry response", [0xc2] = "telemetry notification",
  [0xc3] = "telemetry setup", [0xc4] = "direct response", [0xc5] = "datagram telemetry request", [0xc8] = "selective acknowledge",
  [0xc9] = "selective offer" }
local WAYS = { [0] = "behind Acknowledges", "notifications", "windows" }
local REPORTS = { [0] = "the busiest link", "the busiest link and the flows", "all links" }

local ferroce = Proto("ferroce", "Ferroce")
local hpcc = Proto("hpcc", "HPCC INT")
local int_md = Proto("int_md", "P4 INT-MD")
local ifa = Proto("ifa", "IFA 2.0")
local aecn = Proto("aecn", "Advanced ECN")
local csig = Proto("csig", "CSIG")

-- A protocol's fields, by their names.
local function fields(proto, list)
  local by_name = {}
  for name, field in pairs(list) do by_name[name] = field end
  proto.fields = by_name
  return by_name
end

local FERROCE = fields(ferroce, {
  opcode = ProtoField.uint8("ferroce.opcode", "Opcode", base.HEX, OPCODES),
  kind = ProtoField.uint8("ferroce.feedback.kind", "Kind", base.DEC, KINDS),
  path = ProtoField.uint16("ferroce.feedback.path", "Path id", base.HEX),
  hops = ProtoField.uint8("ferroce.feedback.hops", "Hops"),
  index = ProtoField.uint8("ferroce.feedback.index", "Busiest"),
  window = ProtoField.uint64("ferroce.feedback.window", "Window (bytes)"),
  share = ProtoField.uint32("ferroce.feedback.share", "In-flight share (2^-20)"),
  interval = ProtoField.uint32("ferroce.feedback.interval", "Interval (ns)"),
  rate = ProtoField.uint64("ferroce.feedback.rate", "B (bit/s)"),
  time = ProtoField.uint64("ferroce.feedback.ts", "ts (counts)"),
  bytes = ProtoField.uint64("ferroce.feedback.tx_bytes", "txBytes (counts)"),
  queue = ProtoField.uint64("ferroce.feedback.qlen", "qlen (bytes)"),
  flows = ProtoField.uint32("ferroce.feedback.flows", "Flows at the receiver"),
  counter = ProtoField.uint64("ferroce.seal.counter", "Seal's counter"),
  tag = ProtoField.bytes("ferroce.seal.tag", "Seal"),
  reports = ProtoField.uint8("ferroce.setup.reports", "Answers report", base.DEC, REPORTS),
  reverse = ProtoField.uint8("ferroce.setup.reverse", "Answers", base.DEC, WAYS),
  base_rtt = ProtoField.uint32("ferroce.setup.base_rtt", "T (ns)"),
  line_rate = ProtoField.uint64("ferroce.setup.line_rate", "Line rate (bit/s)"),
  ahead = ProtoField.uint8("ferroce.ahead", "Stretches of 64 PSNs before what is held"),
  held = ProtoField.bytes("ferroce.held", "Held beyond the PSN (bits)"),
  msn = ProtoField.uint24("ferroce.msn", "MSN"),
  accepts = ProtoField.uint8("ferroce.offer.accepts", "Accepts", base.DEC, nil, 0x01),
  queue_key = ProtoField.uint32("ferroce.request.qkey", "Q_Key", base.HEX),
  source = ProtoField.uint24("ferroce.request.source", "Source QPN", base.HEX),
  first_sent = ProtoField.uint24("ferroce.offer.first_sent", "First PSN sent"),
  first_received = ProtoField.uint24("ferroce.offer.first_received", "First PSN received"),
})
local HPCC = fields(hpcc, {
  hops = ProtoField.uint8("hpcc.hops", "Hops"),
  path = ProtoField.uint16("hpcc.path", "Path id", base.HEX),
  room = ProtoField.uint16("hpcc.room", "Room (hops)"),
  subscriber = ProtoField.uint24("hpcc.subscriber", "Subscribes to direct responses, as QPN", base.HEX),
  rate = ProtoField.uint8("hpcc.rate", "B", base.DEC, RATES),
  time = ProtoField.uint32("hpcc.ts", "ts (ns)"),
  bytes = ProtoField.uint32("hpcc.tx_bytes", "txBytes"),
  queue = ProtoField.uint32("hpcc.qlen", "qlen (bytes)"),
})
local INT = fields(int_md, {
  words = ProtoField.uint8("int_md.length", "Length (words)"),
  port = ProtoField.uint16("int_md.port", "Original UDP destination port"),
  version = ProtoField.uint8("int_md.version", "Version", base.DEC, nil, 0xf0),
  hops_exceeded = ProtoField.bool("int_md.e", "Hops exceeded", 8, nil, 0x04),
  mtu_exceeded = ProtoField.bool("int_md.m", "MTU exceeded", 8, nil, 0x02),
  hop_words = ProtoField.uint8("int_md.hop_words", "Words of a hop", base.DEC, nil, 0x1f),
  remaining = ProtoField.uint8("int_md.remaining", "Hops left"),
  instructions = ProtoField.uint16("int_md.instructions", "Instructions", base.HEX),
  domain = ProtoField.uint16("int_md.domain", "Domain", base.HEX),
  node = ProtoField.uint32("int_md.node", "Node"),
  queue = ProtoField.uint24("int_md.qlen", "qlen (bytes)"),
  time = ProtoField.uint64("int_md.ts", "ts (ns)"),
  bytes = ProtoField.uint32("int_md.tx_bytes", "txBytes"),
  rate = ProtoField.uint32("int_md.rate", "B (kbit/s)"),
})
local IFA = fields(ifa, {
  version = ProtoField.uint8("ifa.version", "Version", base.DEC, nil, 0xf0),
  space = ProtoField.uint8("ifa.gns", "Global name space", base.DEC, nil, 0x0f),
  next = ProtoField.uint8("ifa.next", "Next header"),
  most = ProtoField.uint8("ifa.max_length", "Most words of metadata"),
  source = ProtoField.uint16("ifa.udp.srcport", "UDP source port"),
  destination = ProtoField.uint16("ifa.udp.dstport", "UDP destination port"),
  length = ProtoField.uint16("ifa.udp.length", "UDP length"),
  hop_limit = ProtoField.uint8("ifa.hop_limit", "Hop limit"),
  words = ProtoField.uint8("ifa.length", "Words of metadata"),
  local_space = ProtoField.uint8("ifa.lns", "Local name space"),
  device = ProtoField.uint32("ifa.device", "Device"),
  ttl = ProtoField.uint8("ifa.ttl", "TTL"),
  rate = ProtoField.uint8("ifa.rate", "B", base.DEC, IFA_RATES),
  seconds = ProtoField.uint32("ifa.seconds", "Arrival (s)"),
  nanos = ProtoField.uint32("ifa.nanos", "Arrival (ns)"),
  residence = ProtoField.uint32("ifa.residence", "Residence (ns)"),
  port = ProtoField.uint16("ifa.port", "Egress port"),
  bytes = ProtoField.uint32("ifa.tx_bytes", "txBytes"),
  queue = ProtoField.uint32("ifa.qlen", "qlen (bytes)"),
})
local AECN = fields(aecn, {
  customized = ProtoField.bool("aecn.customized", "Customized", 8, nil, 0x01),
  kinds = ProtoField.uint24("aecn.kinds", "Kinds", base.HEX),
  inflight = ProtoField.uint8("aecn.inflight", "In-flight ratio (1/128, max)"),
  dre = ProtoField.uint8("aecn.dre", "DRE (1/128, max)"),
  queue = ProtoField.uint8("aecn.queue", "Queue utilization (1/128, max)"),
  delay = ProtoField.uint8("aecn.delay", "Queue delay (us, sum)"),
  congested = ProtoField.uint8("aecn.congested", "Congested hops (sum)"),
})

local SIGNALS = { [0] = "min(ABW)", "min(ABW/C)", "max(per-hop delay)" }
local CSIG = fields(csig, {
  signal = ProtoField.uint8("csig.t", "Signal", base.DEC, SIGNALS),
  value = ProtoField.uint32("csig.s", "Value"),
  locator = ProtoField.uint16("csig.lm", "Locator", base.HEX),
  ethertype = ProtoField.uint16("csig.type", "Type", base.HEX),
})

local function record(tvb, tree)
  local word = tvb(0, 8)
  local hop = tree:add(word, "Hop")
  hop:add(HPCC.rate, tvb(0, 1), word:bitfield(0, 4))
  hop:add(HPCC.time, tvb(0, 4), word:bitfield(4, 24))
  hop:add(HPCC.bytes, tvb(3, 3), word:bitfield(28, 20) * 128)
  hop:add(HPCC.queue, tvb(6, 2), word:bitfield(48, 16) * 80)
end

-- The word of rtgwg-00 Figure 4 and its records.
local function int_header(tvb, tree)
  if tvb:len() < 4 then return end
  local hops, room = tvb(0, 1):bitfield(0, 4), tvb(2, 2):uint()
  local subscribes = room == 0x8001 and tvb:len() >= 12
  local length = subscribes and 12 or math.min(4 + room * 8, tvb:len())
  local part = tree:add(hpcc, tvb(0, length))
  part:add(HPCC.hops, tvb(0, 1), hops)
  part:add(HPCC.path, tvb(0, 2), tvb(0, 2):bitfield(4, 12))
  if subscribes then
    part:add(HPCC.subscriber, tvb(4, 3))
    return
  end
  part:add(HPCC.room, tvb(2, 2))
  for hop = 0, hops - 1 do
    if 12 + hop * 8 <= length then record(tvb(4 + hop * 8, 8):tvb(), part) end
  end
end

local LENGTHS = { [0] = 12, 12, 12, 4, 48, 52 }

local function feedback(tvb, tree)
  if tvb:len() < 4 then return end
  local kind, hops = tvb(0, 1):bitfield(0, 4), tvb(2, 1):uint()
  local length = (kind == 0 and hops == 0) and 4 or kind == 6 and 4 + hops * 8 or LENGTHS[kind]
  if not length or tvb:len() < length then return end
  local part = tree:add(ferroce, tvb, "Feedback")
  part:add(FERROCE.kind, tvb(0, 1), kind)
  part:add(FERROCE.path, tvb(0, 2), tvb(0, 2):bitfield(4, 12))
  part:add(FERROCE.hops, tvb(2, 1))
  if kind == 0 and hops > 0 then
    part:add(FERROCE.index, tvb(3, 1))
    record(tvb(4, 8):tvb(), part)
  elseif kind == 6 then
    for hop = 0, hops - 1 do record(tvb(4 + hop * 8, 8):tvb(), part) end
  elseif kind == 1 then
    part:add(FERROCE.window, tvb(4, 8))
  elseif kind == 2 then
    part:add(FERROCE.share, tvb(4, 4))
    part:add(FERROCE.interval, tvb(8, 4))
  elseif kind == 4 or kind == 5 then
    part:add(FERROCE.index, tvb(3, 1))
    part:add(FERROCE.rate, tvb(4, 8))
    part:add(FERROCE.time, tvb(12, 8))
    part:add(FERROCE.bytes, tvb(20, 8))
    part:add(FERROCE.queue, tvb(28, 8))
    if kind == 5 then part:add(FERROCE.flows, tvb(48, 4)) end
  end
  if tvb:len() >= length + 24 then
    part:add(FERROCE.counter, tvb(length, 8))
    part:add(FERROCE.tag, tvb(length + 8, 16))
  end
end

local function setup(tvb, tree)
  if tvb:len() < 40 then return end
  tree:add(FERROCE.reverse, tvb(1, 1))
  tree:add(FERROCE.reports, tvb(3, 1))
  tree:add(FERROCE.base_rtt, tvb(4, 4))
  tree:add(FERROCE.line_rate, tvb(8, 8))
end

local function selective(tvb, tree)
  if tvb:len() < 20 then return end
  tree:add(FERROCE.ahead, tvb(0, 1))
  tree:add(FERROCE.msn, tvb(1, 3))
  tree:add(FERROCE.held, tvb(4, 16))
end

local function offer(tvb, tree)
  if tvb:len() < 8 then return end
  tree:add(FERROCE.accepts, tvb(0, 1))
  tree:add(FERROCE.first_sent, tvb(1, 3))
  tree:add(FERROCE.first_received, tvb(5, 3))
end

-- Behind the INT header, as in a UD SEND.
local function datagram_request(tvb, tree)
  int_header(tvb, tree)
  if tvb:len() < 4 then return end
  local at = 4 + tvb(2, 2):uint() * 8
  if tvb:len() < at + 8 then return end
  tree:add(FERROCE.queue_key, tvb(at, 4))
  tree:add(FERROCE.source, tvb(at + 5, 3))
end

local BODIES = { [0xc0] = int_header, [0xc1] = feedback, [0xc2] = feedback, [0xc3] = setup, [0xc4] = feedback,
  [0xc5] = datagram_request, [0xc8] = selective, [0xc9] = offer }

-- A packet from its BTH on: InfiniBand's dissector, then what is ours.
local function transport(tvb, pinfo, tree)
  if rocev2 then rocev2:call(tvb, pinfo, tree) end
  if tvb:len() < 16 then return end
  local opcode, flags = tvb(0, 1):uint(), tvb(4, 1):uint()
  local body = tvb(12, tvb:len() - 16)
  if OPCODES[opcode] then
    local part = tree:add(ferroce, tvb(0, 12), "Ferroce, " .. OPCODES[opcode])
    part:add(FERROCE.opcode, tvb(0, 1))
    if body:len() > 0 then BODIES[opcode](body:tvb(), part) end
    pinfo.cols.info = "Ferroce " .. OPCODES[opcode]
  elseif flags % 64 >= 32 and body:len() > 0 then
    if opcode == 0x11 then
      if body:len() > 4 then feedback(body(4):tvb(), tree) end
    elseif opcode < 0x40 then
      int_header(body:tvb(), tree)
    end
  end
end

function ferroce.dissector(tvb, pinfo, tree) transport(tvb, pinfo, tree) end

function int_md.dissector(tvb, pinfo, tree)
  if tvb:len() < 16 or tvb(0, 1):uint() ~= 0x14 then return 0 end
  local length = 4 + tvb(1, 1):uint() * 4
  if length > tvb:len() then return 0 end
  local part = tree:add(int_md, tvb(0, length))
  part:add(INT.words, tvb(1, 1))
  part:add(INT.port, tvb(2, 2))
  part:add(INT.version, tvb(4, 1))
  part:add(INT.hops_exceeded, tvb(4, 1))
  part:add(INT.mtu_exceeded, tvb(4, 1))
  part:add(INT.hop_words, tvb(6, 1))
  part:add(INT.remaining, tvb(7, 1))
  part:add(INT.instructions, tvb(8, 2))
  part:add(INT.domain, tvb(10, 2))
  if tvb(10, 2):uint() == 0x4652 then
    for at = 16, length - 24, 24 do
      local hop = part:add(tvb(at, 24), "Hop")
      hop:add(INT.node, tvb(at, 4))
      hop:add(INT.queue, tvb(at + 5, 3))
      hop:add(INT.time, tvb(at + 8, 8))
      hop:add(INT.bytes, tvb(at + 16, 4))
      hop:add(INT.rate, tvb(at + 20, 4))
    end
  end
  if tvb(2, 2):uint() == 4791 and tvb:len() > length then transport(tvb(length):tvb(), pinfo, tree) end
  return tvb:len()
end

function ifa.dissector(tvb, pinfo, tree)
  if tvb:len() < 16 or tvb(0, 1):uint() ~= 0x2f or tvb(1, 1):uint() ~= 17 then return 0 end
  local words = tvb(15, 1):uint()
  local length = 16 + words * 4
  if length > tvb:len() then return 0 end
  local part = tree:add(ifa, tvb(0, length))
  part:add(IFA.version, tvb(0, 1))
  part:add(IFA.space, tvb(0, 1))
  part:add(IFA.next, tvb(1, 1))
  part:add(IFA.most, tvb(3, 1))
  part:add(IFA.source, tvb(4, 2))
  part:add(IFA.destination, tvb(6, 2))
  part:add(IFA.length, tvb(8, 2))
  part:add(IFA.hop_limit, tvb(14, 1))
  part:add(IFA.words, tvb(15, 1))
  for at = 16, length - 32, 32 do
    local hop = part:add(tvb(at, 32), "Hop")
    hop:add(IFA.local_space, tvb(at, 1), tvb(at, 1):bitfield(0, 4))
    hop:add(IFA.device, tvb(at, 3), tvb(at, 4):bitfield(4, 20))
    hop:add(IFA.ttl, tvb(at + 3, 1))
    hop:add(IFA.rate, tvb(at + 4, 1), tvb(at + 4, 1):bitfield(0, 4))
    hop:add(IFA.seconds, tvb(at + 4, 4), tvb(at + 4, 4):bitfield(12, 20))
    hop:add(IFA.port, tvb(at + 8, 2))
    hop:add(IFA.nanos, tvb(at + 12, 4))
    hop:add(IFA.residence, tvb(at + 16, 4))
    hop:add(IFA.bytes, tvb(at + 20, 4))
    hop:add(IFA.queue, tvb(at + 26, 2), tvb(at + 26, 2):uint() * 80)
  end
  if tvb(6, 2):uint() == 4791 and tvb:len() > length then transport(tvb(length):tvb(), pinfo, tree) end
  return tvb:len()
end

-- Options can't be registered from Lua: AECN's is read after everything else.
local experimental = Field.new("ipv6.opt.experimental")
local aecn_after = Proto("aecn_after", "Advanced ECN, after IPv6")
function aecn_after.dissector(_, _, tree)
  local names = { AECN.inflight, AECN.dre, AECN.queue, AECN.delay, AECN.congested }
  for _, option in ipairs({ experimental() }) do
    local data = option.range
    if data:len() >= 4 then
      local part = tree:add(aecn, data)
      part:add(AECN.customized, data(0, 1))
      part:add(AECN.kinds, data(1, 3))
      local at = 4
      for kind, field in ipairs(names) do
        if data(0, 1):uint() % 2 == 0 and data(1, 1):bitfield(kind - 1, 1) == 1 and at < data:len() then
          part:add(field, data(at, 1))
          at = at + 1
        end
      end
    end
  end
end
register_postdissector(aecn_after)

-- The TPID is read already. Compact: T 3, R 1, S 5, LM 7; wide: LM 16, T 4, S 20, R 8.
local ethertypes = DissectorTable.get("ethertype")
local function tag(tvb, pinfo, tree, length)
  if tvb:len() < length + 2 then return 0 end
  local part, data = tree:add(csig, tvb(0, length + 2)), tvb(0, length)
  local first, value, locator = 0, data:bitfield(4, 5), data:bitfield(9, 7)
  if length == 6 then first, value, locator = 16, data:bitfield(20, 20), data:bitfield(0, 16) end
  part:add(CSIG.signal, data, data:bitfield(first, length == 6 and 4 or 3))
  part:add(CSIG.value, data, value)
  part:add(CSIG.locator, data, locator)
  part:add(CSIG.ethertype, tvb(length, 2))
  ethertypes:try(tvb(length, 2):uint(), tvb(length + 2):tvb(), pinfo, tree)
  return tvb:len()
end
function csig.dissector(tvb, pinfo, tree) return tag(tvb, pinfo, tree, 2) end
local csig_wide = Proto("csig_wide", "CSIG, wide")
function csig_wide.dissector(tvb, pinfo, tree) return tag(tvb, pinfo, tree, 6) end
ethertypes:add(0x9900, csig)
ethertypes:add(0x9901, csig_wide)

local udp = DissectorTable.get("udp.port")
udp:add(4791, ferroce)
udp:add(1021, int_md)
DissectorTable.get("ip.proto"):add(253, ifa)
