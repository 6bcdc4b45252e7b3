# Runs /etc/command, reports and powers off. /etc/guest names the layout. Everything leaves by virtio-serial
# ports: vm.out and vm.err are the command's, vm.state says `ready RELEASE UPTIME` and `done STATUS UPTIME`,
# vm.files is a tar of /out. Run by busybox; the command has the machine's shell.
. /etc/guest
port() {
  for one in /sys/class/virtio-ports/*; do
    [ "$(cat "$one/name" 2>/dev/null)" = "vm.$1" ] && { echo "/dev/${one##*/}"; return; }
  done
}
# The names come by messages from the host, a moment after the device itself.
tries=0
while [ $tries -lt 500 ]; do
  out=$(port out) err=$(port err) state=$(port state) files=$(port files)
  [ -n "$out" ] && [ -n "$err" ] && [ -n "$state" ] && [ -n "$files" ] && break
  usleep 20000
  tries=$((tries + 1))
done
read -r uptime _ </proc/uptime
echo "ready $(uname -r) $uptime" >"$state"
export COMMENSAL_VM="$LAYOUT"
cd /root
/bin/sh /etc/command >"$out" 2>"$err" </dev/null
status=$?
[ -z "$WANTS_FILES" ] || tar -C /out -cf "$files" .
read -r uptime _ </proc/uptime
echo "done $status $uptime" >"$state"
sync
poweroff -f
