#!/bin/sh
# load DIR ACKED: writes files until /run/stop exists. A file is named by a number and the checksum of what is in it;
# its line goes to ACKED once it is on the disk, in the form that sha256sum -c reads.
dir=$1 acked=$2
n=$(wc -l <"$acked")
exec 2>&1
while [ ! -e /run/stop ]; do
	n=$((n + 1))
	dd if=/dev/urandom of="$dir/new" bs=8k count=1 conv=fsync || exit 1
	s=$(sha256sum <"$dir/new") || exit 1
	mv "$dir/new" "$dir/$n" && sync "$dir/$n" "$dir" || exit 1
	echo "${s%% *}  $n" >>"$acked"
done
