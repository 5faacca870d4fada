# shellcheck shell=bash
# ocf:linbit:drbd looks for /proc/drbd, and for a block device also while the node is Secondary. There is no kernel module
# to make the one, and hawser's devices come with the promotion. As BASH_ENV of pacemakerd (in /etc/default/pacemaker) this
# file is read by every bash agent and answers those two tests; what runs, the agent still asks drbdsetup.
test() {
	case "$*" in
	"-f /proc/drbd" | "-b /dev/drbd"*) return 0 ;;
	esac
	builtin test "$@"
}
