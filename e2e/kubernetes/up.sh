#!/bin/bash
# Starts a cluster on this machine: a control plane and $NODES nodes, each in its own namespaces (network, mount, UTS, IPC,
# PID, cgroup). In the current namespaces it changes nothing except cgroups below its own. down.sh removes everything. With
# OWNER the cluster ends with that process.
. "$(dirname "$0")/env.sh"
[ ! -e "$RUN/up" ] || die "a cluster is running: make cluster-down ends it"
"$HERE/down.sh"
mkdir -p "$RUN/log"
down_after "${OWNER:-$$}"
started=$SECONDS

# ---- namespaces

# cgroup_dirs NAME prints the cgroup of a node in each hierarchy.
cgroup_dirs() {
	local controllers path d
	while IFS=: read -r _ controllers path; do
		if [ -n "$controllers" ]; then
			d=/sys/fs/cgroup/${controllers#name=}
		else
			d=/sys/fs/cgroup
			[ "$CGROUP" = v2 ] || continue
		fi
		[ -d "$d" ] && echo "$d${path%/}/proxyc-$(cksum <<<"$RUN" | cut -d' ' -f1)-$1"
	done </proc/self/cgroup
}
# spawn NAME creates namespaces with node.sh as process 1, whose pid is in NAME.pid.
spawn() {
	local name=$1 d
	mkdir -p "$RUN/$name"
	cgroup_dirs "$name" >"$RUN/$name.cgroups"
	(
		while read -r d; do
			mkdir -p "$d"
			# A new cpuset of v1 has no processors or memory, and accepts no process until it has.
			if [ "$CGROUP" = v1 ] && [ -e "$d/cpuset.cpus" ]; then
				cat "$d/../cpuset.cpus" >"$d/cpuset.cpus"
				cat "$d/../cpuset.mems" >"$d/cpuset.mems"
			fi
			echo $BASHPID >"$d/cgroup.procs"
		done <"$RUN/$name.cgroups"
		exec setsid unshare --net --mount --uts --ipc --pid --cgroup --fork --mount-proc --kill-child \
			"$HERE/node.sh" "$name" </dev/null >"$RUN/log/$name.log" 2>&1
	) &
	local outer=$! inner
	echo "$outer" >"$RUN/$name.outer"
	retry 10 test -e "$RUN/$name/ready" || die "$name does not start: $RUN/log/$name.log"
	read -r inner _ <"/proc/$outer/task/$outer/children" || true
	echo "$inner" >"$RUN/$name.pid"
}
# daemon NAME LOG COMMAND... starts a program on a machine, which ends with process 1.
daemon() {
	local name=$1 log=$2; shift 2
	in_ns "$name" setsid "$@" </dev/null >>"$RUN/log/$log.log" 2>&1 &
	disown
}
spawn ctl
in_ns ctl ip link add br0 type bridge
in_ns ctl ip addr add $NET.1/24 dev br0
in_ns ctl ip link set br0 up
in_ns ctl sysctl -qw net.ipv4.ip_forward=1
if [ -n "$DUAL" ]; then
	in_ns ctl ip addr add ${NET6}:1/64 dev br0 nodad
	in_ns ctl sysctl -qw net.ipv6.conf.all.forwarding=1
fi
ctl=$(cat "$RUN/ctl.pid")
for n in $(seq "$NODES"); do
	spawn "node$n"
	# Run outside the PID namespaces, which do not know each other's pids.
	nsenter -t "$(cat "$RUN/node$n.pid")" -n ip link add eth0 type veth peer name "node$n" netns "$ctl"
	in_ns ctl ip link set "node$n" master br0 up
	in_ns "node$n" ip addr add $NET.1$n/24 dev eth0
	in_ns "node$n" ip link set eth0 up
	in_ns "node$n" ip route add default via $NET.1
	in_ns "node$n" sysctl -qw net.ipv4.ip_forward=1
	in_ns ctl ip route add $PODS.$n.0/24 via $NET.1$n
	for m in $(seq "$NODES"); do
		[ "$m" = "$n" ] || in_ns "node$n" ip route add $PODS.$m.0/24 via $NET.1$m
	done
	[ -n "$DUAL" ] || continue
	in_ns "node$n" ip addr add ${NET6}:1$n/64 dev eth0 nodad
	in_ns "node$n" ip route add default via ${NET6}:1
	in_ns "node$n" sysctl -qw net.ipv6.conf.all.forwarding=1
	in_ns ctl ip route add ${PODS6}$n::/64 via ${NET6}:1$n
	for m in $(seq "$NODES"); do
		[ "$m" = "$n" ] || in_ns "node$n" ip route add ${PODS6}$m::/64 via ${NET6}:1$m
	done
done
say "namespaces: $((SECONDS - started)) s"

# ---- keys

cd "$RUN"
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=proxyc-cluster -keyout api.key -out api.crt \
	-addext "subjectAltName=IP:$NET.1,IP:$SVCS.0.1,IP:${NET6}:1,IP:${SVCS6}:1,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local" 2>/dev/null
openssl genrsa -out sa.key 2048 2>/dev/null
ssh-keygen -q -t ed25519 -N '' -f ssh.key
ssh-keygen -q -t ed25519 -N '' -f sshd.key
cp ssh.key.pub authorized_keys
: >tokens.csv
# user FILE USER GROUP creates a user of the API server and a kubeconfig.
user() {
	local token; token=$(openssl rand -hex 16)
	echo "$token,$2,$2,\"$3\"" >>tokens.csv
	cat >"$1" <<-Y
	apiVersion: v1
	kind: Config
	clusters: [{name: proxyc, cluster: {server: "https://$NET.1:6443", certificate-authority: "$RUN/api.crt"}}]
	users: [{name: "$2", user: {token: $token}}]
	contexts: [{name: proxyc, context: {cluster: proxyc, user: "$2"}}]
	current-context: proxyc
	Y
}
user kubeconfig admin system:masters
user controllers.kubeconfig system:kube-controller-manager ""
user scheduler.kubeconfig system:kube-scheduler ""
user proxy.kubeconfig system:kube-proxy ""
user dns.kubeconfig dns system:masters
for n in $(seq "$NODES"); do user "node$n.kubeconfig" "system:node:node$n" system:nodes; done

# ---- control plane

daemon ctl etcd etcd --data-dir "$RUN/ctl/etcd" --log-level warn --unsafe-no-fsync \
	--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
daemon ctl kube-apiserver "$HERE/apiserver.sh"
retry 90 k get --raw /readyz || die "the API server is not ready: $RUN/log/kube-apiserver.log"
say "API server: $((SECONDS - started)) s"
daemon ctl kube-controller-manager kube-controller-manager --kubeconfig "$RUN/controllers.kubeconfig" --service-account-private-key-file "$RUN/sa.key" \
	--root-ca-file "$RUN/api.crt" --use-service-account-credentials --leader-elect=false --cluster-cidr "$POD_RANGE" --service-cluster-ip-range "$SERVICE_RANGE" \
	--allocate-node-cidrs=false
daemon ctl kube-scheduler kube-scheduler --kubeconfig "$RUN/scheduler.kubeconfig" --leader-elect=false

# ---- nodes

pause_image=$(image pause)
ctr() { in_ns "$1" ctr -a /run/containerd/containerd.sock "${@:2}"; }
node() {
	local name=$1 n=${1#node} dir=$RUN/$1 archive
	mkdir -p "$dir/cni"
	# Pods use a bridge, or one veth each as in kind. A bridge needs hairpin so that a pod can reach itself through a Service.
	local bridge='' range6='' route6=''
	[ "$CNI" != bridge ] || bridge='"bridge": "cni0", "isGateway": true, "hairpinMode": true,'
	[ -z "$DUAL" ] || { range6=", [{\"subnet\": \"${PODS6}$n::/64\"}]" route6=', {"dst": "::/0"}'; }
	cat >"$dir/cni/10-proxyc.conflist" <<-J
	{"cniVersion": "0.3.1", "name": "proxyc", "plugins": [
	  {"type": "$CNI", $bridge "ipMasq": false, "mtu": 1500,
	   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$PODS.$n.0/24"}]$range6], "routes": [{"dst": "0.0.0.0/0"}$route6]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}}
	]}
	J
	cat >"$dir/containerd.toml" <<-T
	version = 2
	root = "/var/lib/containerd"
	state = "/run/containerd"
	disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
	[grpc]
	  address = "/run/containerd/containerd.sock"
	[plugins."io.containerd.grpc.v1.cri"]
	  sandbox_image = "$pause_image"
	  restrict_oom_score_adj = true   # root may lack CAP_SYS_RESOURCE
	  [plugins."io.containerd.grpc.v1.cri".cni]
	    bin_dir = "$DEB/usr/lib/cni"
	    conf_dir = "$dir/cni"
	  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
	    runtime_type = "io.containerd.runc.v2"
	    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
	      BinaryName = "$DEB/usr/sbin/runc"
	T
	echo "nameserver $NET.1" >"$dir/resolv.conf"
	cat >"$dir/kubelet.yaml" <<-Y
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	failCgroupV1: false
	cgroupDriver: cgroupfs
	failSwapOn: false
	authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
	authorization: {mode: AlwaysAllow}
	clusterDNS: ["$DNS_IP"]
	clusterDomain: cluster.local
	resolvConf: $dir/resolv.conf
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	enforceNodeAllocatable: []
	cgroupsPerQOS: false
	imageGCHighThresholdPercent: 100 # images cannot be pulled again
	evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
	oomScoreAdj: 0
	syncFrequency: 1m
	shutdownGracePeriod: 0s
	Y
	daemon "$name" "$name.containerd" containerd -c "$dir/containerd.toml"
	retry 30 ctr "$name" version || die "containerd does not start: $RUN/log/$name.containerd.log"
	for archive in "$IMG"/*.tar; do
		ctr "$name" -n k8s.io images import "$archive" >>"$RUN/log/$name.import.log" 2>&1 || die "$name: import of $archive"
	done
	daemon "$name" "$name.kubelet" kubelet --config "$dir/kubelet.yaml" --kubeconfig "$RUN/$name.kubeconfig" --hostname-override "$name" \
		--node-ip "$(both $NET.1$n ${NET6}:1$n)" --node-labels "topology.kubernetes.io/zone=zone$(((n - 1) % 3 + 1))" --v "${V:-2}"
	daemon "$name" "$name.sshd" env LD_LIBRARY_PATH="$(echo "$DEB"/usr/lib/*-linux-gnu)" "$DEB/usr/sbin/sshd" -D -e -f /dev/null \
		-o HostKey="$RUN/sshd.key" -o AuthorizedKeysFile="$RUN/authorized_keys" -o StrictModes=no -o PidFile=none -o "SetEnv=PATH=$PATH"
}
pids=()
for n in $(seq "$NODES"); do node "node$n" & pids+=($!); done
for p in "${pids[@]}"; do wait "$p" || exit 1; done
say "nodes started: $((SECONDS - started)) s"

# ---- proxies and DNS

ready() { [ "$(k get nodes --no-headers | grep -c ' Ready ')" = "$NODES" ]; }
retry 120 ready || { k get nodes; die "the nodes are not ready: $RUN/log"; }
"$HERE/proxy.sh"
say "nodes ready: $((SECONDS - started)) s"

cat >dns.conf <<C
.:53 {
  bind $NET.1
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $RUN/dns.kubeconfig
    pods insecure
    ttl 5
  }
}
C
daemon ctl coredns coredns -conf "$RUN/dns.conf"
daemon ctl cloud "$HERE/cloud.sh"
k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_IP
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-ctl, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns, endpointslice.kubernetes.io/managed-by: proxyc}}
addressType: IPv4
endpoints: [{addresses: ["$NET.1"], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
Y
[ -n "${OWNER:-}" ] || touch up
say "up after $((SECONDS - started)) s"
cat <<T
$NODES nodes run $PROXY in mode $MODE. To look around:
  $HERE/exec ctl kubectl get pods -A -o wide
  $HERE/exec node1 nft list ruleset
  $HERE/exec node1 proxyc status
To run another proxy: PROXY=kube-proxy MODE=iptables $HERE/proxy.sh
The kubeconfig is $RUN/kubeconfig. Its API server is reachable from ctl and the nodes. make cluster-down ends the cluster.
T
