# ci/rows/migration.sh RANK DIRECTORY COUNT PEER: moves QEMU's guest of migration.S from host 1 to host 0 by RDMA, COUNT times in a
# row, every other time with all memory pinned. Both sides run it; they agree through files in DIRECTORY.
# Host 0 has no peer to name.
rank=$1 work=$2 count=$3 peer=${4:-}
mkdir -p "$work"
fails() { echo "error: QEMU migration $round of $count: $*"; cat "$here".* | tail -n 20; touch "$work/failed"; exit 1; }
# Waits 30 s at most for a pattern in a file.
says() {
  for _ in $(seq 300); do
    [ ! -e "$work/failed" ] || fails "the other side failed"
    ! grep -aq "$2" "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  fails "no \"$2\" in ${1##*/} within 30 s"
}
# Waits 30 s at most for a file of the other side.
comes() {
  for _ in $(seq 300); do
    [ ! -e "$work/failed" ] || fails 'the other side failed'
    [ ! -e "$1" ] || return 0
    sleep 0.1
  done
  fails "no ${1##*/} within 30 s"
}
# begins OPTIONS...: a QEMU whose monitor reads from descriptor 3.
begins() {
  rm -f "$here".*
  mkfifo "$here.commands"
  timeout 100 qemu-system-x86_64 -M pc -accel tcg -m 32 -nodefaults -nographic -serial "file:$here.serial" -monitor stdio \
    -drive "if=floppy,format=raw,readonly=on,file=$work.img" "$@" <"$here.commands" >"$here.said" 2>&1 &
  qemu=$!
  exec 3>"$here.commands"
}
round=0
while [ "$round" -lt "$count" ]; do
  round=$((round + 1))
  here=$work/$round.$rank
  pinned=$([ $((round % 2)) = 1 ] && echo off || echo on)
  if [ "$rank" = 0 ]; then
    begins -incoming "rdma:0.0.0.0:$((4400 + round))"
    echo "migrate_set_capability rdma-pin-all $pinned" >&3
    echo 'info status' >&3
    says "$here.said" 'paused (inmigrate)'
    touch "$work/$round.listens"
    # Only what the guest printed after it moved.
    says "$here.serial" '\.\.\.\.\.'
    ! grep -aq '!' "$here.serial" || fails 'the guest found a wrong word'
    echo quit >&3
    wait $qemu || fails "the destination ended with status $?"
    echo "round $round, pin-all $pinned: the guest checked its memory $(tr -cd . <"$here.serial" | wc -c) times after the migration"
    touch "$work/$round.done"
  else
    begins
    echo "migrate_set_capability rdma-pin-all $pinned" >&3
    echo 'migrate_set_parameter downtime-limit 2000' >&3
    says "$here.serial" '\.\.\.\.\.$'
    comes "$work/$round.listens"
    echo "migrate rdma:$peer:$((4400 + round))" >&3
    echo 'info migrate' >&3
    says "$here.said" 'Migration status: [cf][a-z]*ed'
    grep -aq 'Migration status: completed' "$here.said" || fails 'the source says that it failed'
    ! grep -aq '!' "$here.serial" || fails 'the guest found a wrong word'
    comes "$work/$round.done"
    echo quit >&3
    wait $qemu || fails "the source ended with status $?"
  fi
  exec 3>&-
done
