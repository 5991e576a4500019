# The rig works from end to end: perftest between two processes.
. "$SLACKLINE_RIG_SCRIPTS/pair.sh"
cd "$(mktemp -d)" || exit
# Both sides spin. Left alone they may share a core, and then a message takes a tick of 4 ms instead of 10 us.
local_pair() {
    name=$1
    shift
    pair "$name" 'taskset -c 0' "taskset -c $(($(nproc) - 1))" 127.0.0.1 "$@"
}
local_pair write_bandwidth_64KiB ib_write_bw -s 65536 -n 300
local_pair read_bandwidth_64KiB ib_read_bw -s 65536 -n 300
local_pair write_latency_8B ib_write_lat -s 8 -n 1000
local_pair read_latency_8B ib_read_lat -s 8 -n 1000
local_pair fetch_add_latency ib_atomic_lat -A FETCH_AND_ADD -n 1000
exit 0
