#!/bin/sh
# After the files are in place. dpkg: `configure OLD-VERSION`; rpm: the number of versions that are installed now.
set -e

if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers commensal.conf || echo "commensal: the group commensal was not created; only root can ask the agent" >&2
fi

# Without systemd, or in an image that is being built, nothing runs.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An upgrade replaces what runs. What does not run stays off: a new installation changes nothing.
    for unit in commensal-guard.service commensal-agent.service; do
        systemctl try-restart "$unit" || echo "commensal: $unit could not be restarted: systemctl status $unit" >&2
    done
fi
