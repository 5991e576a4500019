#!/bin/busybox sh
# Process 1 of a guest: loads the modules, mounts the host's file system and goes on there.
# The kernel has ttyS0 to itself; ttyS1 is read by the rig.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
exec </dev/null >/dev/ttyS1 2>&1
stty raw </dev/ttyS1

# Says why, and waits to be ended.
broken() {
    echo "@rig broken $*"
    exec sleep 3600
}

while read -r module arguments; do
    # shellcheck disable=SC2086 # arguments are words
    insmod "/modules/$module" $arguments || broken "cannot load $module"
done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose hostroot /host \
    || broken "cannot mount the host's file system"
mount --bind /host /root

# What is written in the guest stays in its memory.
for mount_point in tmp run dev/shm; do
    [ "$mount_point" = dev/shm ] && mount --move /dev /root/dev && mkdir -p /root/dev/shm
    mount -t tmpfs none "/root/$mount_point" || broken "cannot mount a tmpfs at /$mount_point"
done
mount --move /proc /root/proc
mount --move /sys /root/sys

# folder, scripts; and what programs find where the host has it, even under /tmp: workspace, target
. /settings
# shellcheck disable=SC2154
for path in "$workspace" "$target"; do
    [ -e "/root$path" ] || { mkdir -p "/root$path" && mount --bind "/host$path" "/root$path"; } \
        || broken "cannot show $path"
done
guest=$(sed -n 's/.*rig_guest=\([12]\).*/\1/p' /root/proc/cmdline)
# shellcheck disable=SC2154
exec chroot /root /bin/sh "$scripts/guest.sh" "$guest" "$folder" "$scripts"
