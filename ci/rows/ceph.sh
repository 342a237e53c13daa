# ci/rows/ceph.sh RANK DIRECTORY: host 0 runs a Ceph monitor and a storage daemon that keeps its objects in memory; host 1 writes an object,
# reads it and compares. All of them, with the clients, speak by the messenger async+rdma. The hosts agree through files in DIRECTORY.
rank=$1 work=$2
mkdir -p "$work"
cluster=3a1b6f0e-0001-4c4c-8a8a-000000000001 daemon=3a1b6f0e-0001-4c4c-8a8a-000000000002
settings=$work/settings.$rank
# The messenger takes 4 GiB for received messages if nothing bounds it, and GID 0, which is an IPv6 address.
cat >"$settings" <<END
[global]
fsid = $cluster
mon host = v1:10.79.0.1:6789
public addr = 10.79.0.$((rank + 1))
ms bind msgr2 = false
ms type = async+rdma
ms async rdma device name = ferroce0
ms async rdma gid idx = 1
ms async rdma buffer size = 16384
ms async rdma send buffers = 256
ms async rdma receive buffers = 4096
ms async rdma receive queue len = 64
ms async op threads = 1
auth cluster required = none
auth service required = none
auth client required = none
mon allow pool size one = true
mon data avail warn = 0
mon data avail crit = 0
osd pool default size = 1
osd pool default min size = 1
osd objectstore = memstore
osd crush chooseleaf type = 0
run dir = $work
log file = $work/\$name.log
admin socket = $work/\$name.asok
osd data = $work/osd
mon data = $work/mon
pid file = $work/\$name.pid
END
comes() { # comes FILE
  for _ in $(seq 600); do [ ! -e "$1" ] || return 0; sleep 0.1; done
  fails "no ${1##*/} within 60 s"
}
fails() { echo "error: $*"; touch "$work/ended"; exit 1; }
# Pacific's monitors refuse a client's first question now and then, also over TCP.
until_works() { for _ in $(seq 30); do timeout 10 "$@" 2>"$work/error.$rank" && return; sleep 0.5; done; cat "$work/error.$rank"; return 1; }
if [ "$rank" = 0 ]; then
  ip link set lo up
  mkdir -p "$work/mon" "$work/osd"
  monmaptool --create --fsid $cluster --addv a '[v1:10.79.0.1:6789]' "$work/monitors" >/dev/null &&
    ceph-mon -c "$settings" -i a --mkfs --monmap "$work/monitors" || fails 'ceph-mon makes no store'
  ceph-mon -c "$settings" -i a -f 2>"$work/mon.said" & monitor=$!
  until_works ceph -c "$settings" osd new $daemon || fails 'the monitor does not answer'
  ceph-osd -c "$settings" -i 0 --mkfs --mkkey --osd-uuid $daemon 2>"$work/osd.said" || fails 'ceph-osd makes no store'
  ceph-osd -c "$settings" -i 0 -f 2>>"$work/osd.said" & storage=$!
  touch "$work/serves"
  comes "$work/ended"
  kill -KILL $monitor $storage
  [ -e "$work/same" ] || { tail -n 20 "$work/osd.0.log"; exit 1; }
else
  comes "$work/serves"
  until_works ceph -c "$settings" osd pool create things 8 || fails 'no pool'
  head -c 5000000 /dev/urandom >"$work/in"
  timeout 60 rados -c "$settings" -p things put thing "$work/in" && timeout 60 rados -c "$settings" -p things get thing "$work/out" &&
    cmp "$work/in" "$work/out" || fails 'the object does not come back'
  touch "$work/same" "$work/ended"
fi
