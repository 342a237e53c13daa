# ci/rows/iser.sh RANK DIRECTORY PEER: host 0 serves a disk by tgtd over iSER, host 1 writes and reads it by libiscsi in qemu-img. Both
# sides run it; they agree through files in DIRECTORY. Host 0 has no peer to name.
rank=$1 work=$2 peer=${3:-}
mkdir -p "$work"
name=iqn.2026-11.org.example:disk
# The first of the two that comes.
comes() {
  for _ in $(seq 300); do
    for file in "$@"; do [ ! -e "$file" ] || return 0; done
    sleep 0.1
  done
  echo "error: no ${1##*/} within 30 s"; exit 1
}
fails() { echo "error: $*"; touch "$work/failed"; exit 1; }
if [ "$rank" = 0 ]; then
  # tgtd has its control socket in a folder of the host's, which tgtadm looks for by number.
  control=$((20000 + $$ % 10000))
  administers() { tgtadm -C $control --lld iser --tid 1 --mode "$@"; }
  serves() {
    rm -f "/var/run/tgtd/socket.$control"*
    tgtd -f -C $control --iser port=3260,pool_sz_mb=128 --iscsi portal=127.0.0.1:3262 >"$work/tgtd" 2>&1 & target=$!
    for _ in $(seq 100); do ! administers target --op new --targetname $name 2>/dev/null || break; sleep 0.1; done
    administers logicalunit --op new --lun 1 -b "$work/disk" &&
      administers target --op bind -I ALL &&
      # Debian's tgtd wants the name of the initiator, too.
      administers target --op bind -Q iqn.2008-11.org.linux-kvm || { cat "$work/tgtd"; fails 'tgtd does not serve'; }
  }
  mkdir -p /var/run/tgtd
  truncate -s 8M "$work/disk"
  serves
  touch "$work/serves"
  comes "$work/written" "$work/failed"
  # Killed, and started again on the same disk.
  kill -KILL $target
  serves
  touch "$work/serves-again"
  comes "$work/read" "$work/failed"
  kill -KILL $target
  rm -f "/var/run/tgtd/socket.$control"*
  [ ! -e "$work/failed" ] || { tail -n 20 "$work/tgtd"; exit 1; }
  cmp "$work/image" "$work/disk"
else
  disk=iser://$peer:3260/$name/1
  for part in $(seq 128); do head -c 64K /dev/zero | tr '\0' "\\$(printf %o "$part")"; done >"$work/image"
  comes "$work/serves" "$work/failed"
  # Each 64 KiB have a pattern of their own.
  set --
  for part in $(seq 0 127); do set -- "$@" -c "write -q -P $((part + 1)) $((part * 64))k 64k"; done
  timeout 30 qemu-io -f raw "$@" "$disk" || fails 'qemu-io does not write the disk'
  # An initiator that is killed while it reads disturbs no other.
  qemu-img dd -f raw -O raw bs=64k if="$disk" of="$work/killed" & client=$!
  sleep 0.2
  kill -KILL $client 2>/dev/null
  touch "$work/written"
  comes "$work/serves-again" "$work/failed"
  timeout 30 qemu-img dd -f raw -O raw bs=64k if="$disk" of="$work/copy" || fails 'qemu-img does not read the disk'
  [ "$(sha256sum <"$work/image")" = "$(sha256sum <"$work/copy")" ] || fails 'the copy differs'
  touch "$work/read"
fi
