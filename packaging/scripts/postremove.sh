#!/bin/sh
# After the files are removed. dpkg: `remove`, `purge` or `upgrade`; rpm: the number of versions that stay.
set -e

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
fi

# The journals are empty: the values were restored before the program was removed. rpm has no purge and keeps them.
if [ "$1" = purge ]; then
    rm -rf /var/lib/commensal /run/commensal
fi
