# Lost packets are lost: the device sends again, and counts that.
. "$SLACKLINE_RIG_SCRIPTS/pair.sh"
cd "$(mktemp -d)" || exit
retries() { cat "/sys/class/infiniband/$SLACKLINE_RIG_DEVICE/ports/1/hw_counters/completer_retry_err"; }

pair write_bandwidth_64KiB '' "$SLACKLINE_RIG_RUN" "$SLACKLINE_RIG_PEER" ib_write_bw -s 65536 -n 50
before=$(retries)
sh "$SLACKLINE_RIG_SCRIPTS/netem.sh" loss 2% || echo "RESULT faults_are_set FAILED"
pair write_bandwidth_64KiB_loss_2% '' "$SLACKLINE_RIG_RUN" "$SLACKLINE_RIG_PEER" ib_write_bw -s 65536 -n 50
after=$(retries)
if [ "$after" -gt "$before" ]; then
    echo "RESULT the_device_sent_again ok"
else
    echo "RESULT the_device_sent_again FAILED completer_retry_err: $before before, $after after"
fi
exit 0
