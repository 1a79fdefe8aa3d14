#!/bin/bash
# Takes the cluster down: ends process 1 of each PID namespace, which ends the others, and removes cgroups and files.
# KEEP=1 keeps logs. $1, if any, is the process that started it: the cluster of another one stays.
. "$(dirname "$0")/env.sh"
mkdir -p "$WORK"
exec 9<"$WORK"
flock 9
[ $# = 0 ] || [ "$1" = "$(cat "$RUN/owner" 2>/dev/null)" ] || exit 0
for f in "$RUN"/*.outer; do
	[ -e "$f" ] || continue
	pid=$(cat "$f") inner=$(cat "${f%.outer}.pid" 2>/dev/null || true)
	# The pid may belong to another process by now. unshare --kill-child also ends its child.
	if grep -qs "$HERE/node.sh" "/proc/$pid/cmdline"; then kill -KILL "$pid" || true; fi
	for p in $pid $inner; do
		retry 20 sh -c "! grep -qs '$HERE/node.sh' /proc/$p/cmdline" || say "process $p of $(basename "$f" .outer) does not end"
	done
done
for f in "$RUN"/*.cgroups; do
	[ -e "$f" ] || continue
	while read -r d; do
		# A cgroup can be busy for a moment after its last process ended.
		[ ! -d "$d" ] || retry 20 sh -c "find '$d' -depth -type d -exec rmdir {} +" || say "$d cannot be removed"
	done <"$f"
done
if [ -n "${KEEP:-}" ]; then find "$RUN" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf {} +; else rm -rf "$RUN"; fi
