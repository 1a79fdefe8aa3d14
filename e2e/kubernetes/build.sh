#!/bin/bash
# Builds the programs of a cluster: Kubernetes and its tests, etcd and CoreDNS from Go modules, proxyc from this repository.
# Unpacks containerd, runc, CNI plugins and sshd of Debian. Keeps programs that exist, except proxyc.
. "$(dirname "$0")/env.sh"
mkdir -p "$BIN" "$DEB"
cd "$HERE/.."                                                       # the module e2e
k8s=k8s.io/kubernetes
version=$(go list -m -f '{{.Version}}' $k8s)
# Without these the programs have version v0.0.0-master. Tests that compare versions cannot parse it.
v=k8s.io/component-base/version
flags="-X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=$(cut -d. -f2 <<<"$version")"
[ "$(cat "$BIN/version" 2>/dev/null)" = "$version" ] || rm -f "$BIN"/*
echo "$version" >"$BIN/version"

# program NAME COMMAND... runs the command, whose arguments contain $new as the file to write, unless the program exists.
new=$BIN/.new
program() {
	local name=$1 start=$SECONDS; shift
	[ ! -e "$BIN/$name" ] || return 0
	"$@" || die "$name"
	mv "$new" "$BIN/$name"
	say "built $name: $((SECONDS - start)) s"
}
rm -f "$BIN/proxyc"
program proxyc go build -C .. -o "$new" ./cmd/proxyc
for c in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
	program $c go build -ldflags "$flags" -o "$new" $k8s/cmd/$c
done
program etcd go build -o "$new" go.etcd.io/etcd/server/v3
program ginkgo go build -o "$new" github.com/onsi/ginkgo/v2/ginkgo
program agnhost go build -ldflags "$flags -s -w" -o "$new" $k8s/test/images/agnhost
program regression-issue-74839 env CGO_ENABLED=0 go build -o "$new" $k8s/test/images/regression-issue-74839
program coredns go build -C "$HERE/coredns" -o "$new" .
program e2e.test go test -vet=off -c -ldflags "$flags" -o "$new" $k8s/test/e2e

for variant in nft legacy; do
	mkdir -p "$WORK/iptables/$variant"
	for tool in ip{,6}tables{,-save,-restore}; do ln -sf "/usr/sbin/xtables-$variant-multi" "$WORK/iptables/$variant/$tool"; done
done
packages=(containerd runc containernetworking-plugins openssh-server libwrap0)
if [ "$(cat "$DEB/packages" 2>/dev/null)" != "${packages[*]}" ]; then
	cd "$DEB"
	download() { apt-get -q -o APT::Sandbox::User=root download "${packages[@]}" >/dev/null; }
	download || { apt-get update -q >/dev/null && download; } || die "Debian packages cannot be downloaded: ${packages[*]}"
	for d in *.deb; do dpkg-deb -x "$d" .; done
	# The tests run sudo on nodes, where they are root.
	printf '#!/bin/sh\nexec "$@"\n' >usr/bin/sudo
	chmod +x usr/bin/sudo
	echo "${packages[*]}" >packages
fi
