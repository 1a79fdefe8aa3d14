# The daemon's part of docs/architecture.md: one endpoint becomes ready, and another program deletes
# an element of proxyc. Prints the daemon's log, with only the letter of a line's header, and without
# process IDs.
set -e
ip link set lo up
cp cluster.yaml live.yaml
: >log # the daemon may create it late
proxyc watch -c node.yaml -s live.yaml -v 4 2>log &
daemon=$!
trap 'kill $daemon 2>/dev/null' EXIT

# await waits until the log contains N lines with all words of a pattern.
await() {
	i=0
	until [ "$(grep -c "$2" log)" -ge "$1" ]; do
		i=$((i + 1))
		[ $i -lt 600 ] || { cat log; exit 1; }
		sleep 0.05
	done
}

await 1 '"synced" kind="full"'
cp new.yaml next.yaml
mv next.yaml live.yaml
await 1 '"synced" kind="change"'
nft delete element ip proxyc backends '{ 10.96.0.10 . tcp . 80 . 2 }'
await 2 '"synced" kind="full"'
sed -n 's|^\(.\)[^]]*\]|\1|; s| took=.*||; s|(process [0-9]*)|(process …)|; /changed the rules\|synced/p' log
