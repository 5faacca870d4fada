# shellcheck shell=bash
# For those who come from DRBD and keep its agent ocf:linbit:drbd for a while. It takes "no /proc/drbd" for "not
# running", and a Secondary's device must be there, which DRBD's is and hawser's is not. Named as BASH_ENV of
# pacemakerd (in /etc/default/pacemaker), this file is read by every bash agent of the node and answers those two
# questions; all others go on to bash. ocf:hawser:volume needs none of it.
test() {
	case "$#:$1:$2" in
	2:-f:/proc/drbd) return 0 ;;
	2:-b:/dev/drbd* | 2:-b:/dev/hawser/*) builtin test -b "$2" || drbdsetup device-exists "$2" 2>/dev/null ;;
	*) builtin test "$@" ;;
	esac
}
