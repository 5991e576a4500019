#!/bin/sh
# The kernel of the guests: the newest that Debian has, downloaded and unpacked, not installed.
# usage: kernel.sh FOLDER MODULE...
# Leaves in FOLDER: vmlinuz, version, modules/*.ko, modules/order, one `insmod` a line in order of dependence, and `for`,
# the MODULES that it was made for.
set -eu
PATH=$PATH:/usr/sbin:/sbin
folder=$1
shift
rm -rf "$folder.new"
mkdir -p "$folder.new/modules"
cd "$folder.new"

# The meta package depends on the newest.
fetch() {
    package=$(apt-cache depends linux-image-amd64 2>/dev/null \
        | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
    [ -n "$package" ] && echo "downloading $package" && apt-get download "$package"
}
if ! fetch; then
    # The lists are missing, or too old.
    [ "$(id -u)" != 0 ] || apt-get update
    fetch
fi

dpkg -x ./*.deb unpacked
# Some releases have it there.
[ -e unpacked/lib ] || ln -s usr/lib unpacked/lib
version=$(ls unpacked/lib/modules)
depmod -b unpacked "$version"
for module in "$@"; do
    modprobe -d "$folder.new/unpacked" -S "$version" --show-depends "$module" >depends
    while read -r how path arguments; do
        name=$(basename "$path")
        if [ "$how" != insmod ] || [ -e "modules/${name%.xz}" ]; then
            continue
        fi
        case $name in
        *.xz) xz -dc "$path" >"modules/${name%.xz}" ;;
        *) cp "$path" modules/ ;;
        esac
        echo "${name%.xz} $arguments" >>modules/order
    done <depends
done
cp "unpacked/boot/vmlinuz-$version" vmlinuz
echo "$version" >version
# Last: where it is found, all is there.
echo "$@" >for
rm -rf unpacked depends ./*.deb "$folder"
mv "$folder.new" "$folder"
