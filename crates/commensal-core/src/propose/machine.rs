//! What belongs to the machine itself, which no proposal limits, and what is known of other programs.

/// Units of the machine: their names without `.service` and without an instance.
const UNITS: &str = "
    ssh sshd dropbear getty serial-getty console-getty container-getty user user-runtime-dir sssd nscd
    nslcd winbind polkit rtkit-daemon accounts-daemon gdm gdm3 sddm lightdm display-manager
    dbus dbus-broker rsyslog syslog syslog-ng auditd chrony chronyd ntp ntpd ntpsec cron crond cronie
    anacron atd logrotate man-db mlocate-updatedb plocate-updatedb updatedb fstrim sysstat
    sysstat-collect sysstat-summary
    docker containerd podman crio cri-o cri-docker buildkit nerdctl kubelet kube-proxy k3s k3s-agent
    k0scontroller k0sworker rke2-server rke2-agent microk8s lxc lxc-net lxcfs lxd incus libvirtd
    virtlogd virtlockd virtqemud machine nomad consul etcd corosync pacemaker keepalived
    NetworkManager networking network wpa_supplicant iwd networkd-dispatcher firewalld ufw nftables
    iptables ModemManager avahi-daemon bluetooth dnsmasq unbound resolvconf dhcpcd dhclient tailscaled
    wg-quick openvpn strongswan rpcbind rpc-statd nfs-server nfs-mountd nfs-idmapd autofs bird frr
    udisks2 upower colord multipathd iscsid open-iscsi mdmonitor mdadm smartd smartmontools irqbalance
    thermald tuned tlp acpid haveged rngd rng-tools zfs-zed cups cups-browsed power-profiles-daemon
    numad ksmtuned mcelog rasdaemon fwupd fwupd-refresh bolt
    qemu-guest-agent open-vm-tools vmtoolsd hv-kvp-daemon amazon-ssm-agent google-guest-agent
    google-osconfig-agent walinuxagent waagent
    snapd packagekit unattended-upgrades dpkg-db-backup motd-news ua-timer apport whoopsie e2scrub_all
    e2scrub_reap node_exporter prometheus-node-exporter telegraf collectd netdata below zabbix-agent
    zabbix-agent2 snmpd datadog-agent filebeat fluentd fluent-bit falco osqueryd watchdog init
";

/// Beginnings of the names of units of the machine.
const UNIT_BEGINNINGS: &str = "
    systemd- dbus- cloud- apt- dnf- yum- zypp packagekit- update-notifier- lvm2- blk-availability
    modprobe@ dracut- initrd- plymouth- grub- selinux- apparmor snap. commensal docker- nfs- kmod-
    ldconfig rescue emergency quotaon console-setup keyboard-setup alsa- ifup@ netplan-
";

/// Programs of the machine: a unit, container or pod that runs one of them is the machine's.
const PROGRAMS: &str = "
    systemd init (sd-pam) sd-pam sshd dropbear dbus-daemon dbus-broker dbus-broker-launch polkitd
    rsyslogd syslog-ng auditd chronyd ntpd cron crond anacron atd agetty getty login dockerd containerd
    containerd-shim containerd-shim-runc-v2 docker-init docker-proxy runc crun conmon podman crio
    cri-dockerd buildkitd rootlesskit slirp4netns kubelet kube-proxy kube-apiserver kube-scheduler
    kube-controller-manager k3s k3s-server k3s-agent etcd coredns flanneld calico-node cilium-agent
    kindnetd lxcfs lxd incusd libvirtd virtlogd virtqemud NetworkManager wpa_supplicant firewalld
    dhclient dhcpcd dnsmasq rpcbind udisksd upowerd multipathd iscsid smartd irqbalance thermald qemu-ga
    vmtoolsd snapd packagekitd supervisord runsvdir runsv s6-svscan s6-supervise openrc tini dumb-init
    catatonit node_exporter sudo su tmux screen SCREEN Xorg Xwayland gnome-shell commensal
    commensal-sched commensal-faults
";

/// Programs that run another one, which an argument names.
const INTERPRETERS: &str = "
    sh bash dash zsh fish ksh busybox perl ruby node nodejs deno bun java php lua Rscript R env uv
    dotnet mono erl beam.smp julia awk xargs timeout nice ionice chrt taskset nohup setsid strace
";

/// Programs that nobody waits for, as a rule.
const BATCH: &str = "
    ffmpeg x264 x265 HandBrakeCLI blender gcc g++ cc cc1 cc1plus clang clang++ ld ld.lld mold lto1 make
    gmake ninja cmake rustc cargo go bazel ctest rsync restic borg rclone duplicity tar bsdtar gzip pigz
    xz pixz zstd bzip2 lbzip2 lz4 7z 7za zip pg_dump pg_dumpall pg_basebackup mysqldump mariadb-dump
    xtrabackup mongodump updatedb clamscan clamdscan stress-ng stress fio sysbench cksum md5sum sha1sum
    sha256sum b3sum find sort dd convert magick
";

fn has(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

/// Whether a unit belongs to the machine.
pub(super) fn is_unit(name: &str) -> bool {
    let name = name.strip_suffix(".service").unwrap_or(name);
    let base = name.split('@').next().unwrap_or(name);
    has(UNITS, base) || UNIT_BEGINNINGS.split_whitespace().any(|begin| name.starts_with(begin))
}

/// Whether a program belongs to the machine.
pub(super) fn is_program(name: &str) -> bool {
    has(PROGRAMS, name) || name.starts_with("systemd-")
}

/// Whether a program runs another one: the programs above, and those with a version in their name.
pub(super) fn is_interpreter(name: &str) -> bool {
    let plain = name.trim_end_matches(|one: char| one.is_ascii_digit() || one == '.');
    has(INTERPRETERS, name) || has(INTERPRETERS, plain) || ["python", "pypy"].contains(&plain)
}

/// Whether a program does batch work, as a rule.
pub(super) fn is_batch(name: &str) -> bool {
    has(BATCH, name)
}

#[cfg(test)]
pub(super) fn names() -> (Vec<&'static str>, Vec<&'static str>) {
    let units = UNITS.split_whitespace().chain(UNIT_BEGINNINGS.split_whitespace());
    (units.collect(), PROGRAMS.split_whitespace().collect())
}
