#!/bin/busybox sh
# The init process of a VM that is a cell (see src/protocol.rs): uses the protocol of cells on the serial line, and
# computes. The kernel passes `sessions` and `work` from its command line as environment variables. Each session is a
# process, so the guest's scheduler distributes the sessions over the vCPUs.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
/bin/busybox stty raw -echo

# Both functions set a variable, in hundredths of a second: `now`, the time since boot, and `stolen`, the steal time of
# all vCPUs of this guest (proc_stat(5), field 8).
now() {
  read -r up _ </proc/uptime
  cents=${up#*.}
  now=$((${up%.*} * 100 + ${cents#0}))
}
stolen() {
  read -r _ _ _ _ _ _ _ _ stolen _ </proc/stat
}
# Prints a protocol line: the word $1, and $2 hundredths of a second as seconds.
say() {
  cents=$(($2 % 100))
  [ $cents -lt 10 ] && cents=0$cents
  echo "$1 $(($2 / 100)).$cents"
}
session() {
  chunk=0
  while [ $chunk -lt "$work" ]; do
    round=0
    while [ $round -lt 2000 ]; do
      round=$((round + 1))
    done
    chunk=$((chunk + 1))
  done
}

echo ready
read -r _
now
begun=$now
stolen
before=$stolen
started=0
while [ $started -lt "$sessions" ]; do
  session &
  started=$((started + 1))
done
wait
now
stolen
say steal $((stolen - before))
say done $((now - begun))
read -r _
/bin/busybox reboot -f
