#!/bin/sh
# After the files are removed. dpkg: `remove`, `purge` or `upgrade`; rpm: the number of versions that stay.
set -e

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
fi

# The data belongs to the user and stays, also after a purge.
if [ "$1" = purge ]; then
    rm -rf /var/lib/commensal-sql/state
fi
