#!/bin/sh
# review.sh [OPTION VALUE]... OLD NEW OUT reviews a change of manifests from OLD to NEW, which are files or
# directories. It writes OUT/comment.md, OUT/lint.sarif and OUT/report.html. It exits with 1 if the change
# must not be merged: new errors or warnings of lint, a violated contract, a packet with another result
# than expected, or an effect of -e. It exits with 2 if an input cannot be read.
#
#	-c FILE     KubeProxyConfiguration
#	-s FILE     snapshot of the cluster; NEW is then compared with the cluster
#	-f FILE     contracts that must hold
#	-p FILE     packets with expected results
#	-n NODE     node on which the packets arrive
#	-e EFFECTS  effects of the change that must not occur, such as opens,lost
#
# Options with an empty value have no effect.
set -u
config= snapshot= contracts= packets= node= effects= code=0
while getopts c:s:f:p:n:e: option; do
	case $option in
	c) config=$OPTARG ;;
	s) snapshot=$OPTARG ;;
	f) contracts=$OPTARG ;;
	p) packets=$OPTARG ;;
	n) node=$OPTARG ;;
	e) effects=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
old=${1:?} new=${2:?} out=${3:?}
mkdir -p "$out"

# old and new run a verb of proxyc for the old and the new objects.
old() {
	verb=$1
	shift
	proxyc "$verb" ${config:+-c "$config"} -s "${snapshot:-$old}" "$@"
}
new() {
	verb=$1
	shift
	if [ -n "$snapshot" ]; then
		old "$verb" --overlay "$new" "$@"
	else
		proxyc "$verb" ${config:+-c "$config"} -s "$new" "$@"
	fi
}

# failed NAME CODE records the highest exit code.
failed() {
	echo "$1: exit code $2" >&2
	if [ "$2" -gt "$code" ]; then
		code=$2
	fi
}

# Findings from before the change do not count.
old lint --write-baseline "$out/known.txt" || failed baseline $?
new lint --baseline "$out/known.txt" -o sarif >"$out/lint.sarif" || failed lint $?

# The comment contains the changed flows and the new findings.
if [ -n "$snapshot" ]; then
	new diff --all-nodes ${effects:+--fail-on "$effects"} -o markdown
else
	old diff -S "$new" --all-nodes ${effects:+--fail-on "$effects"} -o markdown
fi >"$out/comment.md"
changed=$?
if [ $changed -gt 1 ] || [ $changed = 1 ] && [ -n "$effects" ]; then
	failed diff $changed
fi
echo >>"$out/comment.md"
new lint --baseline "$out/known.txt" -o markdown >>"$out/comment.md"

# The page contains all details.
if [ -n "$snapshot" ]; then
	new report --against "$snapshot" --all-nodes -o "$out/report.html"
else
	new report --against "$old" --all-nodes -o "$out/report.html"
fi || failed report $?

if [ -n "$contracts" ]; then
	new assert -f "$contracts" >"$out/contracts.txt" || failed contracts $?
fi
if [ -n "$packets" ]; then
	new trace ${node:+--node "$node"} --packets "$packets" >"$out/packets.txt" || failed packets $?
fi
exit $code
