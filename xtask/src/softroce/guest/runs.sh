#!/bin/sh
# Does the runs that FOLDER/runs names, a NAME and SECONDS a line: each is the script FOLDER/NAME.run.
# usage: runs.sh FOLDER [FRESH]; the script FRESH goes before each.
folder=$1 fresh=$2
while read -r name seconds; do
    echo "@rig begin $name"
    if [ -n "$fresh" ] && ! sh "$fresh" </dev/null; then
        echo "@rig broken no RDMA device before the run $name"
        exit 1
    fi
    setsid --wait timeout --kill-after=5 "$seconds" sh "$folder/$name.run" </dev/null 2>&1
    # After a line that was not ended, too.
    printf '\n@rig end %s %s\n' "$name" "$?"
done <"$folder/runs"
echo "@rig done"
