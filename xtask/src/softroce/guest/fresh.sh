#!/bin/sh
# Makes a guest as it was after the start: nothing runs that a run left behind, no fault on the network, new devices
# with counters at zero. Fails if they are not there then.
# A run has a session of its own, and so has what it starts elsewhere; the rig itself is in that of process 1.
session() {
    read -r line 2>/dev/null <"/proc/$1/stat" || return
    # shellcheck disable=SC2086 # the words behind the name: state, parent, group, session
    set -- ${line##*) }
    echo "$4"
}
ours=$(session $$)
for process in /proc/[0-9]*; do
    process=${process#/proc/}
    case $(session "$process") in
    '' | 0 | "$ours") ;;
    *) kill -9 "$process" ;;
    esac
done
netdev=$SLACKLINE_RIG_NETDEV
tc qdisc delete dev "$netdev" root 2>/dev/null
is_active() { grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state"; }
# usage: renew DEVICE INTERFACE
renew() {
    ip link set "$2" up
    rdma link delete "$1" 2>/dev/null
    rdma link add "$1" type rxe netdev "$2" || return
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        is_active "$1" && return
        sleep 0.5
    done
    is_active "$1"
}
renew "$SLACKLINE_RIG_DEVICE" "$netdev" || exit
[ -z "$SLACKLINE_RIG_DEVICE_2" ] || renew "$SLACKLINE_RIG_DEVICE_2" "$SLACKLINE_RIG_NETDEV_2" || exit
# There is no way on from there.
[ -z "$SLACKLINE_RIG_RUN" ] || "$SLACKLINE_RIG_RUN" sh "$0"
