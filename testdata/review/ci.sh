#!/bin/sh
# ci.sh CONFIG OLD NEW FLOWS OUT reviews a change of a cluster's Services in a pull request. It writes
# OUT/comment.md, OUT/lint.sarif and OUT/report.html. It exits with 1 if the change must not be merged:
# findings that are errors or new warnings, flows that differ from FLOWS, or rules that do not implement
# the Services. It exits with 2 if an input cannot be read.
set -u
config=$1 old=$2 new=$3 flows=$4 out=$5
mkdir -p "$out"
code=0

# ran NAME CODE records the highest exit code.
ran() {
	if [ "$2" -gt 0 ]; then
		echo "$1: exit code $2" >&2
	fi
	if [ "$2" -gt "$code" ]; then
		code=$2
	fi
}

# Findings from before the change do not count.
proxyc lint -c "$config" -s "$old" --write-baseline "$out/known.txt" || ran baseline $?
proxyc lint -c "$config" -s "$new" --baseline "$out/known.txt" --fail-on warning -o sarif >"$out/lint.sarif"
ran lint $?

# Changed flows are the purpose of the change. They are shown, and are no failure.
proxyc diff -c "$config" -s "$old" -S "$new" --all-nodes -o markdown >"$out/comment.md"
changed=$?
if [ $changed -gt 1 ]; then
	ran diff $changed
fi
echo >>"$out/comment.md"
proxyc lint -c "$config" -s "$new" --baseline "$out/known.txt" -o markdown >>"$out/comment.md"

# The page with all details.
proxyc report -c "$config" -s "$new" --against "$old" --all-nodes -o "$out/report.html" || ran report $?

# Expectations that every change must meet.
proxyc trace -c "$config" -s "$new" --hostname-override node1 --packets "$flows" >"$out/flows.txt"
ran flows $?

# The rules implement the Services, for every first packet.
for node in node1 node2 node3; do
	proxyc prove -c "$config" -s "$new" --hostname-override $node ir mode:nftables >"$out/prove-$node.txt"
	ran "prove $node" $?
done
exit $code
