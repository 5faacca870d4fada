#!/bin/sh
# Every action of the resource agents, in every state, against a stub of the program: exit code, promotion score, reason
# and calls. Run it with the shell that the agents should work with.
set -u
here=$(cd "$(dirname "$0")" && pwd)
OCF_ROOT=/usr/lib/ocf
export OCF_ROOT
[ -r "$OCF_ROOT/lib/heartbeat/ocf-shellfuncs" ] || { echo "resource-agents is not installed: make deps"; exit 1; }
STUB=$(mktemp -d) || exit 1
export STUB
trap 'rm -rf "$STUB"' EXIT
PATH=$here/stub:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
HA_RSCTMP=$STUB HA_logfile=$STUB/log HA_LOGFACILITY=none OCF_RESOURCE_INSTANCE=r0 OCF_RESKEY_logfile=$STUB/agent.log
export HA_RSCTMP HA_logfile HA_LOGFACILITY OCF_RESOURCE_INSTANCE OCF_RESKEY_logfile
passed=0 failed=0

fresh() {
	rm -rf "${STUB:?}"/*
	: >"$STUB/calls"
}

# answer VERB CODE [STDOUT [STDERR]]
answer() {
	printf '%s\n%s\n%s\n' "$2" "${3:-}" "${4:-}" >"$STUB/$1"
}

# act AGENT ACTION [NAME=VALUE...]: sets code, score and said.
act() {
	agent=$1 action=$2
	shift 2
	case $agent in volume) set -- OCF_RESKEY_drbd_resource=r0 "$@" ;; esac
	env "$@" sh "$here/../hawser/$agent" "$action" >"$STUB/stdout" 2>"$STUB/stderr"
	code=$?
	score=$(cat "$STUB/score" 2>/dev/null || echo none)
	said=$(sed -n 's/^ocf-exit-reason://p' "$STUB/stderr")
}

# want NAME CODE [SCORE [REASON [CALL]]]: SCORE and CALL may be empty; CALL beginning with ! must not be there.
want() {
	ok=1
	[ "$code" = "$2" ] || ok=0
	[ -z "${3:-}" ] || [ "$score" = "$3" ] || ok=0
	case ${4:-} in
	'') ;;
	-) [ -z "$said" ] || ok=0 ;;
	*) case $said in *"$4"*) ;; *) ok=0 ;; esac ;;
	esac
	case ${5:-} in
	'') ;;
	!*) ! grep -q -e "${5#!}" "$STUB/calls" || ok=0 ;;
	*) grep -q -e "$5" "$STUB/calls" || ok=0 ;;
	esac
	if [ "$ok" = 1 ]; then
		passed=$((passed + 1))
		return
	fi
	failed=$((failed + 1))
	echo "FAIL $1: code $code (want $2), score $score (want ${3:-any}), reason '$said' (want ${4:-any}), call ${5:-any} in:"
	sed 's/^/    /' "$STUB/calls"
	sed 's/^/    stderr: /' "$STUB/stderr"
}

probe=OCF_RESKEY_CRM_meta_interval=0
recurring=OCF_RESKEY_CRM_meta_interval=10000
timeout=OCF_RESKEY_CRM_meta_timeout

# --- meta-data
for agent in volume agent; do
	fresh
	PATH=/usr/bin:/bin act "$agent" meta-data
	want "$agent meta-data" 0
	for rng in "$here/ocf-1.1.rng" /usr/share/resource-agents/metadata.rng; do
		xmllint --noout --relaxng "$rng" "$STUB/stdout" 2>"$STUB/stderr"
		code=$? score=none said=''
		want "$agent meta-data is valid by $rng" 0
	done
	act "$agent" dance
	want "$agent: an action that is none" 3
	act "$agent" usage
	want "$agent usage" 0
done
# The schema itself must refuse something.
echo '<resource-agent name="x"><version>1.1</version></resource-agent>' >"$STUB/bad.xml"
xmllint --noout --relaxng "$here/ocf-1.1.rng" "$STUB/bad.xml" 2>/dev/null
code=$? score=none said=''
[ "$code" = 0 ] || code=3
want "the schema refuses what is not complete" 3

# --- monitor
for kind in "$probe" "$recurring"; do
	fresh; answer state 4 '' 'hawser: r0: it is down'
	act volume monitor "$kind"
	want "monitor $kind: down" 7 none -
	fresh; answer state 3 '' 'hawser: r0: its replicator does not answer'
	act volume monitor "$kind"
	want "monitor $kind: who cannot tell does not say it is down" 1 none 'does not answer'
	fresh; answer state 1 '' 'hawser: something'
	act volume monitor "$kind"
	want "monitor $kind: any other failure" 1 none 'something'
	fresh; answer state 0 'nonsense'
	act volume monitor "$kind"
	want "monitor $kind: an answer that is none" 1
	fresh; answer state 0 'up Secondary 10000 all-uptodate'
	act volume monitor "$kind"
	want "monitor $kind: Secondary" 0 10000 -
	fresh; answer state 0 'up Primary 10000'
	act volume monitor "$kind"
	want "monitor $kind: Primary" 8 10000 - '!unfence-peer'
	fresh; answer state 0 'up Secondary 0'; echo 1000 >"$STUB/score"
	act volume monitor "$kind"
	want "monitor $kind: a score of 0 is none" 0 none -
	fresh; answer state 0 'up Primary 0 broken'
	act volume monitor "$kind"
	want "monitor $kind: Primary without data" 9 none 'no UpToDate data'
	fresh; answer state 0 'up Primary 10000 suspended'
	act volume monitor "$kind"
	want "monitor $kind: frozen is not failed" 8 10000 -
done
fresh; answer state 0 'up Primary 10000 all-uptodate'
act volume monitor "$recurring"
want "monitor: stale constraints are looked for" 8 10000 - 'unfence-peer r0'
fresh; answer state 0 'up Primary 10000 all-uptodate'; answer unfence-peer 1 '' 'hawser: no cluster'
act volume monitor "$recurring"
want "monitor: a failure of that is none of the monitor" 8 10000 -
fresh; answer state 0 'up Primary 10000 all-uptodate'
act volume monitor "$recurring" OCF_RESKEY_unfence_if_all_uptodate=false
want "monitor: unless it is switched off" 8 10000 - '!unfence-peer'
fresh; answer state 0 'up Primary 10000 all-uptodate'
act volume monitor "$probe"
want "monitor: not in a probe" 8 10000 - '!unfence-peer'
fresh; answer state 0 'up Secondary 10000 all-uptodate'
act volume monitor "$recurring"
want "monitor: a Secondary has nothing to remove" 0 10000 - '!unfence-peer'
fresh; answer state 0 'up Secondary 10000 all-uptodate fenced'
act volume monitor "$recurring"
want "monitor: unless it asked for it" 0 10000 - 'unfence-peer r0'
fresh; answer state 4; echo 10000 >"$STUB/score"
act volume monitor "$recurring"
want "monitor: what is down has no score" 7 none -
fresh; answer state 0 'up Secondary 10000'; : >"$STUB/fails-crm_master"; : >"$STUB/fails-crm_attribute"
act volume monitor "$recurring"
want "monitor: a score that cannot be set is no failure of the volume" 0
fresh; answer state 0 'up Secondary 7'
act volume monitor "$recurring" 'OCF_RESKEY_adjust_master_score=1 7 8 9'
want "monitor: scores of one's own" 0 7 - '--scores 1 7 8 9'
fresh; answer state 0 'up Secondary 10000 peer-primary'
act volume monitor "$recurring" OCF_RESKEY_remove_master_score_if_peer_primary=true
want "monitor: no score while a peer is Primary" 0 none
fresh; answer state 0 'up Secondary 10000 peer-primary'; echo 'resource r0 is running on: n2 Promoted' >"$STUB/locate"
act volume monitor "$recurring" OCF_RESKEY_remove_master_score_if_peer_primary=unexpected
want "monitor: a peer that Pacemaker promoted is expected" 0 10000
fresh; answer state 0 'up Secondary 10000 peer-primary'; echo 'resource r0 is running on: n2 Master' >"$STUB/locate"
act volume monitor "$recurring" OCF_RESKEY_remove_master_score_if_peer_primary=unexpected
want "monitor: in the old words too" 0 10000
fresh; answer state 0 'up Secondary 10000 peer-primary'; echo 'resource r0 is running on: n2' >"$STUB/locate"
act volume monitor "$recurring" OCF_RESKEY_remove_master_score_if_peer_primary=unexpected
want "monitor: a peer that Pacemaker does not know of is not" 0 none
fresh
act volume monitor "$probe" OCF_RESKEY_hawser=/nowhere/hawser
want "probe without the program" 7
act volume monitor "$recurring" OCF_RESKEY_hawser=/nowhere/hawser
want "monitor without the program" 5 '' 'not installed'
act volume monitor "$recurring" OCF_RESKEY_drbd_resource=
want "monitor without a name" 6 '' 'drbd_resource'

# --- start
fresh; answer state 0 'up Secondary 1000'
act volume start "$timeout=240000"
want "start" 0 1000 - 'pacemaker start r0 --wait 5s --within 204s'
act volume start "$timeout=240000"
want "start of what runs" 0 1000 -
fresh; answer state 0 'up Secondary 1000'
act volume start OCF_RESKEY_wfc_timeout=30
want "start: wfc_timeout" 0 1000 - '--wait 30s'
fresh; answer state 0 'up Secondary 1000'
act volume start OCF_RESKEY_wfc_timeout=
want "start: without waiting" 0 1000 - '--wait 0s'
fresh; answer start 1 '' 'hawser: r0: the agent does not run'
act volume start
want "start fails" 1 none 'the agent does not run'
fresh; answer state 0 'up Primary 10000'
act volume start
want "start must leave it unpromoted" 1 none 'Primary'
fresh; answer validate 4 '' 'hawser: r0: no file in /etc/hawser/resources.d defines it'
act volume start
want "start without a resource file: never on this node" 5 none 'no file' '!pacemaker start'
fresh; answer validate 2 '' 'hawser: resource name'
act volume start
want "start with a bad name: nowhere" 6 none '' '!pacemaker start'
act volume start 'OCF_RESKEY_drbd_resource=r0;reboot'
want "start with a dangerous name" 6 none 'is no name'
act volume start OCF_RESKEY_CRM_meta_clone=0 OCF_RESKEY_CRM_meta_notify=false
want "start without notify" 6 none 'notify=true'
fresh; answer state 0 'up Secondary 1000'
act volume start OCF_RESKEY_CRM_meta_clone=0 OCF_RESKEY_CRM_meta_notify=false OCF_RESKEY_ignore_missing_notifications=true
want "start without notify, on purpose" 0 1000
for name in clone_node_max promoted_node_max master_node_max promoted_max master_max; do
	act volume start "OCF_RESKEY_CRM_meta_$name=2"
	want "start with $name=2" 6 '' "$name"
done
act volume start OCF_RESKEY_connect_only_after_promote=true
want "start with what is not possible" 6 '' 'connect_only_after_promote'
act volume start OCF_RESKEY_hawser=/nowhere/hawser
want "start without the program" 5 '' 'not installed'

# --- promote
fresh; answer state 0 'up Primary 10000'
act volume promote "$timeout=90000"
want "promote" 0 10000 - 'pacemaker promote r0 --within 76s$'
fresh; answer state 0 'up Primary 10000'
act volume promote OCF_RESKEY_fail_promote_early_if_peer_primary=true
want "promote only once" 0 10000 - '--once'
fresh; answer state 0 'up Secondary 10000'
act volume promote
want "promote is verified" 1 '' 'Secondary'
fresh; answer state 0 'up Secondary 0'; answer promote 1 '' 'hawser: r0: the data is Outdated'; echo 10000 >"$STUB/score"
act volume promote
want "promote is refused, and the score tells" 1 none 'Outdated'

# --- demote
fresh; answer state 0 'up Secondary 10000'
act volume demote "$timeout=90000"
want "demote" 0 10000 - 'pacemaker demote r0 --within 67s'
fresh; answer demote 4 '' 'hawser: r0: its replicator had to be killed'
act volume demote
want "demote of what is not there any more" 7
fresh; answer demote 3 '' 'hawser: r0: process 5 was killed and does not end'
act volume demote
want "demote fails" 1 '' 'does not end'

# --- stop
fresh; echo 10000 >"$STUB/score"
act volume stop "$timeout=100000"
want "stop takes the score away" 0 none - 'pacemaker stop r0 --within 75s'
act volume stop
want "stop of what is down" 0 none -
fresh; answer stop 3 '' 'hawser: r0: process 5 was killed and does not end'; echo 10000 >"$STUB/score"
act volume stop
want "stop fails" 1 none 'does not end'
fresh
act volume stop OCF_RESKEY_hawser=/nowhere/hawser
want "stop without the program" 0
act volume stop OCF_RESKEY_CRM_meta_notify=false OCF_RESKEY_CRM_meta_clone=0
want "stop does not validate" 0
fresh; answer state 0 'up Secondary 10000'
act volume stop OCF_RESKEY_stop_outdates_secondary=true OCF_RESKEY_CRM_meta_notify_promoted_uname=n2
want "stop outdates" 0 none - 'hawser outdate r0'
fresh; answer state 0 'up Secondary 10000'
act volume stop OCF_RESKEY_stop_outdates_secondary=true OCF_RESKEY_CRM_meta_notify_master_uname=n2
want "stop outdates, in the old words" 0 none - 'hawser outdate r0'
fresh; answer state 0 'up Secondary 10000'
act volume stop OCF_RESKEY_stop_outdates_secondary=true OCF_RESKEY_CRM_meta_notify_promoted_uname=' '
want "stop does not outdate while nobody is promoted" 0 none - '!outdate'
fresh; answer state 0 'up Secondary 10000'
act volume stop OCF_RESKEY_CRM_meta_notify_promoted_uname=n2
want "stop outdates only when asked to" 0 none - '!outdate'

# --- notify, reload-agent, validate-all
fresh; answer state 0 'up Secondary 10000'
act volume notify OCF_RESKEY_CRM_meta_notify_type=post OCF_RESKEY_CRM_meta_notify_operation=stop
want "notify after: the score" 0 10000
fresh; answer state 0 'up Secondary 10000'
act volume notify OCF_RESKEY_CRM_meta_notify_type=pre OCF_RESKEY_CRM_meta_notify_operation=promote
want "notify before: nothing" 0 none - '!state'
fresh; answer state 3
act volume notify OCF_RESKEY_CRM_meta_notify_type=post OCF_RESKEY_CRM_meta_notify_operation=start
want "notify never fails" 0 none -
act volume notify OCF_RESKEY_hawser=/nowhere/hawser
want "notify without the program" 0
fresh; answer state 0 'up Primary 10000'
act volume reload-agent
want "reload-agent of a Primary" 0 10000
fresh; answer state 4
act volume reload-agent
want "reload-agent of what is down" 7
fresh
act volume validate-all
want "validate-all does not need it to run" 0 none - '!state'
fresh; answer validate 1 '' 'hawser: r0.yaml:3: no'
act volume validate-all
want "validate-all with a bad file" 5 none 'r0.yaml'
fresh
act volume validate-all OCF_RESKEY_config=/etc/other.yaml
want "settings of the node elsewhere" 0 none - 'hawser --config /etc/other.yaml pacemaker validate r0'

# --- ocf:hawser:agent
fresh; answer agent-state 0 'up 99999999'
act agent monitor "$recurring"
want "agent: up" 0 none -
act agent start
want "agent: start of what runs" 0
fresh; answer agent-state 4 'down'
act agent monitor "$recurring"
want "agent: down" 7
act agent stop
want "agent: stop of what is down" 0
act agent start
want "agent: it ends at once" 1 none 'the agent ended'
fresh; answer agent-state 3 'silent 99999999'
act agent monitor "$recurring"
want "agent: it hangs" 1 none 'does not answer'
fresh; answer agent-state 1
act agent monitor "$recurring"
want "agent: nobody can tell" 1 none 'cannot tell'
act agent stop
want "agent: stop when nobody can tell" 1 none 'cannot tell'
act agent stop OCF_RESKEY_hawser=/nowhere/hawser
want "agent: stop without the program" 0
act agent monitor "$probe" OCF_RESKEY_hawser=/nowhere/hawser
want "agent: probe without the program" 7
act agent start OCF_RESKEY_hawser=/nowhere/hawser
want "agent: start without the program" 5 '' 'not installed'

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
