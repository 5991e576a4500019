#!/bin/sh
# A guest on the host's file system: its network, then the runs (guest 1) or a shell for guest 1 (guest 2).
# usage: guest.sh 1|2 FOLDER SCRIPTS
guest=$1 folder=$2 scripts=$3
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb RUST_BACKTRACE=1
export SLACKLINE_RIG_SCRIPTS="$scripts" SLACKLINE_RIG_DEVICE=rxe0 SLACKLINE_RIG_ADDRESS="10.9.9.$guest"
cd /tmp || exit

hostname "slack$guest"
ulimit -l unlimited
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    netdev=eth0
else
    netdev=dummy0
    ip link add "$netdev" type dummy
fi
export SLACKLINE_RIG_NETDEV="$netdev"
# Room for 4096 bytes and what rxe puts around them.
interface() {
    ip link set "$1" mtu 4200
    ip address add "$2/24" dev "$1"
    ip link set "$1" up
}
interface "$netdev" "$SLACKLINE_RIG_ADDRESS"
if [ "$netdev" = dummy0 ]; then
    # A network of its own: nothing goes from one of the two devices to the other.
    export SLACKLINE_RIG_DEVICE_2=rxe1 SLACKLINE_RIG_NETDEV_2=dummy1
    ip link add dummy1 type dummy
    interface dummy1 10.9.8.1
fi

if [ "$guest" = 2 ]; then
    export SLACKLINE_RIG_PEER=10.9.9.1
    "$folder/elsewhere" serve 10.9.9.2:99
    echo "@rig broken guest 2 serves no shell"
    exec sleep 3600
fi
echo "@rig up $(uname -r)"
if [ "$netdev" = eth0 ]; then
    export SLACKLINE_RIG_PEER=10.9.9.2 SLACKLINE_RIG_RUN=/run/peer
    # A name without blanks.
    ln -s "$folder/peer" /run/peer
    until "$SLACKLINE_RIG_RUN" true 2>/dev/null; do sleep 0.2; done
fi
sh "$scripts/runs.sh" "$folder" "$scripts/fresh.sh"
exec sleep 3600
