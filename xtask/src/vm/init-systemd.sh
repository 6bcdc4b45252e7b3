#!/bin/busybox sh
# The first process of a guest with systemd, until it becomes systemd: loads modules, and sees to it that the
# kernel has patched its code for cpusets and quotas before there is more than one process; init.sh says why.
# systemd finds the group that holds the patches and keeps it: it has a unit of that name with the same limits.
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sys /sys
while read -r module; do
  insmod "/modules/$module" || echo "init: insmod $module failed" >/dev/console
done </modules/order
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
echo +cpu +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/patches.slice
echo 0-3 >/sys/fs/cgroup/patches.slice/cpuset.cpus
echo 1000000 100000 >/sys/fs/cgroup/patches.slice/cpu.max
ip link set lo up
exec /lib/systemd/systemd
