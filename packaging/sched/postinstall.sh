#!/bin/sh
# After the files are in place. dpkg: `configure OLD-VERSION`; rpm: the number of versions that are installed now.
set -e

# Without systemd, or in an image that is being built, nothing runs.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An upgrade replaces what runs; offline work yields by cpu.idle meanwhile. What does not run stays off.
    systemctl try-restart commensal-sched.service ||
        echo "commensal-sched: the scheduler could not be restarted: systemctl status commensal-sched" >&2
fi
