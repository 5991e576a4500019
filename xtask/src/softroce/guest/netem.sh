#!/bin/sh
# What RDMA sends from this guest meets these faults of tc's netem; what TCP sends meets none. Without arguments: none.
# usage: netem.sh ARGUMENT..., e.g. netem.sh loss 2%
netdev=$SLACKLINE_RIG_NETDEV
tc qdisc delete dev "$netdev" root 2>/dev/null
[ $# -gt 0 ] || exit 0
# RoCE v2 is UDP to port 4791; the third band of prio is otherwise for bulk.
tc qdisc add dev "$netdev" root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 \
    && tc qdisc add dev "$netdev" parent 1:3 handle 3: netem "$@" \
    && tc filter add dev "$netdev" parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3
