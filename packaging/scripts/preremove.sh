#!/bin/sh
# Before the program is removed: every kernel value is restored, because nothing else can do that. dpkg: `remove` or
# `upgrade NEW-VERSION`; rpm: the number of versions that stay.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl disable --now commensal-agent.service commensal-guard.service commensal-groups.service || :
fi

status=0
commensal restore || status=$?
case "$status" in
0) ;;
1) echo "commensal: cgroups that are in use stay, and vanish with their last process" >&2 ;;
*)
    echo "commensal: not everything could be restored (see above), so the program stays. Try: commensal restore" >&2
    exit 1
    ;;
esac
