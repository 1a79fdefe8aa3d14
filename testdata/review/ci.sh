#!/bin/sh
# ci.sh CONFIG OLD NEW FLOWS OUT reviews a change of a cluster's Services, as a pull request has it.
# It writes OUT/comment.md, OUT/lint.sarif and OUT/report.html, and exits with 1 where the change is not to be
# merged: findings that are errors or new warnings, flows that are not as FLOWS expects, or rules that do
# not do what the cluster means; and with 2 where something cannot be read.
set -u
config=$1 old=$2 new=$3 flows=$4 out=$5
mkdir -p "$out"
code=0

# ran NAME CODE keeps the worst exit code of all.
ran() {
	if [ "$2" -gt 0 ]; then
		echo "$1: exit code $2" >&2
	fi
	if [ "$2" -gt "$code" ]; then
		code=$2
	fi
}

# What was found before the change is not the change's.
proxyc lint -c "$config" -s "$old" --write-baseline "$out/known.txt" || ran baseline $?
proxyc lint -c "$config" -s "$new" --baseline "$out/known.txt" --fail-on warning -o sarif >"$out/lint.sarif"
ran lint $?

# That flows change is what the change is for: it is told, and is no failure.
proxyc diff -c "$config" -s "$old" -S "$new" --all-nodes -o markdown >"$out/comment.md"
changed=$?
if [ $changed -gt 1 ]; then
	ran diff $changed
fi
echo >>"$out/comment.md"
proxyc lint -c "$config" -s "$new" --baseline "$out/known.txt" -o markdown >>"$out/comment.md"

# The page for those who want to look closer.
proxyc report -c "$config" -s "$new" --against "$old" --all-nodes -o "$out/report.html" || ran report $?

# What must hold of it, whatever changes.
proxyc trace -c "$config" -s "$new" --hostname-override node1 --packets "$flows" >"$out/flows.txt"
ran flows $?

# The rules do what the cluster means, for every first packet.
for node in node1 node2 node3; do
	proxyc prove -c "$config" -s "$new" --hostname-override $node ir mode:nftables >"$out/prove-$node.txt"
	ran "prove $node" $?
done
exit $code
