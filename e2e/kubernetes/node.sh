#!/bin/bash
# Process 1 of the namespaces of a node, started by up.sh. It prepares mounts, cgroups and devices, creates the file ready,
# and reaps orphans. $1: the node's name.
. "$(dirname "$0")/env.sh"
name=$1 dir=$RUN/$1

mount --make-rprivate /
# Directories with fixed names are the node's own. Containers are on the real disk.
for d in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 "node-${d//\//-}" $d; done
mkdir -p /run/lock /run/sshd /var/lib/{kubelet,containerd,cni} /var/log/pods "$dir"/{kubelet,containerd}
(cat /etc/passwd; echo "sshd:x:999:65534::/run/sshd:/usr/sbin/nologin") >"$dir/passwd"
mount --bind "$dir/passwd" /etc/passwd
mount --bind "$dir/kubelet" /var/lib/kubelet
mount --bind "$dir/containerd" /var/lib/containerd

# A sysfs of this network namespace, and the cgroups of this cgroup namespace: the node sees its own cgroup as the root.
mount -t sysfs sysfs /sys
if [ "$CGROUP" = v2 ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
	while IFS=: read -r _ controllers _; do
		[ -n "$controllers" ] || continue                      # 0:: is the hierarchy of v2, without controllers
		d=/sys/fs/cgroup/${controllers#name=}
		mkdir -p "$d"
		mount -t cgroup -o "$controllers" cgroup "$d" || rmdir "$d"
	done </proc/self/cgroup
fi
mount --make-rshared /
hostname "$name"
ip link set lo up
touch "$dir/ready"
trap 'exit 0' TERM
while :; do sleep 3600 & wait $! || true; done
