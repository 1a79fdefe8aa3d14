package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// inUserNamespace has its own /run, as a pod has.
const inUserNamespace = `set -e
mount -t tmpfs none /run
ip link set lo up
ip link add cni0 type veth peer pod0
ip link set pod0 up
ip link set cni0 up
ip addr add 10.244.1.1/24 dev cni0
ip addr add fd00:10:244:1::1/64 dev cni0 nodad
ip addr add 192.0.2.11/32 dev cni0
ip addr add 2001:db8:0:1::11/128 dev cni0 nodad
ip route add default dev cni0
ip -6 route add default dev cni0
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
proxyc demo --write . >/dev/null
in="-c config.yaml -s cluster.yaml --mode nftables"
proxyc apply $in >/dev/null
proxyc prove $in ir kernel
proxyc cleanup >/dev/null
proxyc watch $in 2>log & watch=$!
until grep -q synced log; do
	kill -0 $watch || { cat log; exit 1; }
	sleep 0.05
done
proxyc prove $in ir kernel
kill $watch
wait $watch
`

// In a user namespace with its own network namespace, as that of a rootless kubelet, apply and watch
// write rules that handle every packet as the IR states.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t) // not all systems allow other users to make namespaces
	cmd := exec.CommandContext(t.Context(), "sh", "-c", inUserNamespace)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
