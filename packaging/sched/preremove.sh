#!/bin/sh
# Before the program is removed: the scheduler is unloaded, and every thread gets its own policy back, because nothing else
# can do that. dpkg: `remove` or `upgrade NEW-VERSION`; rpm: the number of versions that stay.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl disable --now commensal-sched.service || :
fi

# It may have been loaded without the unit. This needs no commensal-sched: after a kill, the journal is enough.
status=0
commensal sched unload || status=$?
case "$status" in
0) ;;
1) echo "commensal-sched: the scheduler of another program stays loaded (see above)" >&2 ;;
*)
    echo "commensal-sched: not every thread has its own policy back (see above), so the program stays. Try: commensal sched unload" >&2
    exit 1
    ;;
esac
