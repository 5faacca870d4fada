# shellcheck shell=sh
# Settings and small helpers shared by the lab scripts; sourced, never run.
HAWSER_VM_CACHE=${HAWSER_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hawser-vm}  # kernels, images, key
HAWSER_VM_RUN=${HAWSER_VM_RUN:-/run/hawser-vm}                                 # state of running VMs
HAWSER_VM_DISKS=${HAWSER_VM_DISKS:-/dev/shm/hawser-vm}                        # disk images of drbd-pair and drbd-peer
HAWSER_VM_NS=${HAWSER_VM_NS:-hawser-vm}            # network namespace that holds the bridge and the VMs
HAWSER_VM_BR=${HAWSER_VM_BR:-br0}
HAWSER_VM_HOSTIP=${HAWSER_VM_HOSTIP:-10.77.0.1} # address of the bridge itself, inside the namespace
HAWSER_VM_KERNEL=${HAWSER_VM_KERNEL:-bookworm} # default kernel: bookworm, bookworm-backports, trixie
HAWSER_VM_BIN=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
export HAWSER_VM_CACHE HAWSER_VM_RUN HAWSER_VM_NS HAWSER_VM_KERNEL

die() { echo "${0##*/}: $*" >&2; exit 1; }
inns() { ip netns exec "$HAWSER_VM_NS" "$@"; }
vm() { "$HAWSER_VM_BIN/vm" "$@"; }

# net_up: the namespace, its loopback and the bridge (idempotent).
net_up() {
	[ -c /dev/net/tun ] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; }
	ip netns list | grep -qw "^$HAWSER_VM_NS" || ip netns add "$HAWSER_VM_NS"
	inns ip link set lo up
	inns ip link show "$HAWSER_VM_BR" >/dev/null 2>&1 && return 0
	inns ip link add "$HAWSER_VM_BR" type bridge forward_delay 0 stp_state 0
	inns ip addr add "$HAWSER_VM_HOSTIP/24" dev "$HAWSER_VM_BR"
	inns ip link set "$HAWSER_VM_BR" up
}

# drbd_conf OWN_NAME PEER_NAME OWN_IP PEER_IP: the resource file r0, on standard output.
# PROTO, NETOPTS and DISKOPTS (text for the net and disk sections) shape it.
drbd_conf() {
	cat <<-END
	global { usage-count no; }
	resource r0 {
		net { protocol ${PROTO:-C}; ${NETOPTS:-} }
		disk { ${DISKOPTS:-} }
		device minor 0; disk /dev/vda; meta-disk internal;
		on $1 { address $3:${DRBD_PORT:-7788}; }
		on $2 { address $4:${DRBD_PORT:-7788}; }
	}
	END
}
# drbd_node NAME: creates meta data in the VM and attaches, without connecting.
drbd_node() {
	vm exec "$1" -- 'set -e; modprobe drbd; yes | drbdadm create-md --force r0 >/dev/null 2>&1
		drbdadm new-resource r0; drbdadm new-minor r0; drbdadm attach r0'
}
