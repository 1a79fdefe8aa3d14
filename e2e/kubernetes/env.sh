# Settings and functions of all scripts here; sourced, not run. docs/development.md describes their use.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
WORK=${WORK:-${XDG_CACHE_HOME:-$HOME/.cache}/proxyc-cluster}   # on a real disk: overlayfs cannot be stacked on overlayfs
BIN=$WORK/bin                      # programs of build.sh
DEB=$WORK/deb                      # containerd, runc, CNI plugins and sshd, unpacked but not installed
IMG=$WORK/img                      # image archives of images.sh
RUN=${RUN:-$WORK/run}              # the running cluster: pids, keys, logs, disks of nodes
NODES=${NODES:-3}
PROXY=${PROXY:-proxyc}             # proxyc or kube-proxy
MODE=${MODE:-nftables}
IPTABLES=${IPTABLES:-nft}          # nft or legacy: the variant of iptables on the nodes
CNI=${CNI:-bridge}                 # bridge or ptp
DUAL=${DUAL:-}                     # 4 or 6: both families, this one first
NET=10.90.0                        # nodes: .1 is the control plane, .11 node1, .12 node2 ...
PODS=10.244                        # pods of node N: $PODS.N.0/24
SVCS=10.96                         # Services: $SVCS.0.0/16
NET6=fd00:90: PODS6=fd00:244: SVCS6=fd00:96:   # with DUAL: $NET6:11, $PODS6N::/64, $SVCS6:/112
LBS=10.91                         # load balancers
DNS_IP=$SVCS.0.10
ADDRESS=$NET.1; [ "$DUAL" != 6 ] || ADDRESS=${NET6}:1   # of the API server
PATH=$WORK/iptables/$IPTABLES:$BIN:$DEB/usr/bin:$DEB/usr/sbin:$PATH:/usr/sbin:/sbin
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then CGROUP=${CGROUP:-v2}; else CGROUP=${CGROUP:-v1}; fi
export WORK RUN NODES PROXY MODE IPTABLES CNI DUAL PATH CGROUP KUBECACHEDIR=$RUN/kubectl-cache

say() { printf '%(%T)T %s\n' -1 "$*" >&2; }
die() { say "error: $*"; exit 1; }
case $DUAL in '' | 4 | 6) ;; *) die "DUAL=$DUAL: use 4 or 6" ;; esac

# both V4 V6 prints the values of all families of the cluster, as flags expect them.
both() { case $DUAL in 4) echo "$1,$2" ;; 6) echo "$2,$1" ;; *) echo "$1" ;; esac; }
POD_RANGE=$(both $PODS.0.0/16 ${PODS6}:/32)
SERVICE_RANGE=$(both $SVCS.0.0/16 ${SVCS6}:/112)

# image NAME prints the name of an image.
image() { tar -xOf "$IMG/$1.tar" manifest.json | jq -r '.[0].RepoTags[0]'; }

# retry SECONDS COMMAND... repeats the command until it succeeds.
retry() {
	local end=$((SECONDS + $1)); shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.3
	done
}

# in_ns NAME COMMAND... runs a command in the namespaces of ctl, node1, node2 ... It also moves the process into their
# cgroups: entering a cgroup namespace does not, and a kubelet outside its root would create its pods there.
in_ns() {
	local pid; pid=$(cat "$RUN/$1.pid"); shift
	nsenter -t "$pid" -n -m -u -i -C -p -- sh -c '
		for d in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do [ ! -e "$d" ] || echo $$ >"$d"; done
		exec "$@"' sh "$@"
}
k() { in_ns ctl kubectl --kubeconfig "$RUN/kubeconfig" "$@"; }

# down_after PID takes the cluster down when the process ends, even if it is killed, unless the file up exists then.
down_after() {
	echo "$1" >"$RUN/owner"
	setsid bash -c 'tail --pid="$1" -f /dev/null; [ -e "$RUN/up" ] || exec "$2/down.sh" "$1"' sh "$1" "$HERE" </dev/null >/dev/null 2>&1 &
}
