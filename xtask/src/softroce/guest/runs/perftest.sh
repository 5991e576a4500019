# The rig works from end to end: perftest between two processes.
. "$SLACKLINE_RIG_SCRIPTS/pair.sh"
cd "$(mktemp -d)" || exit
pair write_bandwidth_64KiB '' 127.0.0.1 ib_write_bw -s 65536 -n 300
pair read_bandwidth_64KiB '' 127.0.0.1 ib_read_bw -s 65536 -n 300
pair write_latency_8B '' 127.0.0.1 ib_write_lat -s 8 -n 1000
pair read_latency_8B '' 127.0.0.1 ib_read_lat -s 8 -n 1000
pair fetch_add_latency '' 127.0.0.1 ib_atomic_lat -A FETCH_AND_ADD -n 1000
exit 0
