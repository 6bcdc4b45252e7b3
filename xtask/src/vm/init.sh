#!/bin/busybox sh
# The first process of a guest: mounts, loads modules, and goes on with report.sh. /etc/guest names the layout.
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
ln -sf /proc/self/fd /dev/fd
chmod 1777 /tmp /dev/shm
while read -r module; do
  insmod "/modules/$module" || echo "init: insmod $module failed" >/dev/console
done </modules/order
. /etc/guest
case $LAYOUT in
v1)
  mount -t tmpfs cgroup /sys/fs/cgroup
  for controller in cpu cpuacct cpuset memory blkio pids freezer; do
    mkdir "/sys/fs/cgroup/$controller"
    if ! mount -t cgroup -o "$controller" "$controller" "/sys/fs/cgroup/$controller"; then
      echo "init: no v1 hierarchy with $controller" >/dev/console
      rmdir "/sys/fs/cgroup/$controller"
    fi
  done
  mkdir /sys/fs/cgroup/unified
  mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
  ;;
*)
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  # One by one: a controller that cannot be given away must not keep the others back.
  for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
  ;;
esac
# Every real machine has groups. Here one more thing hangs on them: with the first cpuset and the first quota
# the kernel patches its own code, and an emulated CPU that is just there may run half of the old
# instruction (seen: panic in get_page_from_freelist, QEMU 7.2). These keep the patches in for good.
for group in /sys/fs/cgroup/system /sys/fs/cgroup/cpu/system /sys/fs/cgroup/cpuset/system \
  /sys/fs/cgroup/memory/system; do
  [ -e "${group%/*}/cgroup.procs" ] && mkdir "$group"
done
for quota in /sys/fs/cgroup/system/cpu.max /sys/fs/cgroup/cpu/system/cpu.cfs_quota_us; do
  [ -e "$quota" ] && echo 1000000 >"$quota"
done
# The same with the first two who listen to a tracepoint: the third only joins a list. `blame` comes and goes often.
if mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; then
  mkdir /sys/kernel/tracing/instances/second
  for instance in /sys/kernel/tracing /sys/kernel/tracing/instances/second; do
    echo 0 >$instance/tracing_on
    for event in sched/sched_switch sched/sched_wakeup sched/sched_wakeup_new sched/sched_migrate_task \
      sched/sched_process_exit irq/irq_handler_entry irq/irq_handler_exit irq/softirq_entry irq/softirq_exit \
      irq_vectors/local_timer_entry irq_vectors/local_timer_exit signal/signal_generate; do
      [ -e "$instance/events/$event/enable" ] && echo 1 >"$instance/events/$event/enable"
    done
  done
fi
ip link set lo up
. /etc/report
