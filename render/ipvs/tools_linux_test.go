package ipvs

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// ipset and iptables-restore accept the output in a new network namespace. The
// test loads the whole text with --test. It also loads the text twice without the
// balancer's matches, because some kernels lack xt_ipvs.
func TestToolsAccept(t *testing.T) {
	dir := t.TempDir()
	p4, p6 := program(ir.IPv4), program(ir.IPv6)
	admit(p4, netip.MustParsePrefix("0.0.0.0/0"))
	load := make(map[string]string)
	for _, o := range LowerAll(ir.NewPrograms(p4, p6)).Outputs() {
		if err := os.WriteFile(filepath.Join(dir, o.File), []byte(text(t, o.Write)), 0o600); err != nil {
			t.Fatal(err)
		}
		load[o.Format] = o.Load
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "sh", "-euxc", `
		export XTABLES_LOCKFILE=$PWD/lock
		for i in 1 2; do `+load["ipset"]+`; done
		iptables-restore --noflush --test iptables.rules
		ip6tables-restore --noflush --test ip6tables.rules
		for i in 1 2; do
			sed -i '/-m ipvs/d' iptables.rules ip6tables.rules
			`+load["iptables"]+`
			`+load["ip6tables"]+`
		done
		test $(iptables-save | grep -c '^-A [A-Z]* .*-j KUBE-') = 9
		test $(ip6tables-save | grep -c '^-A [A-Z]* .*-j KUBE-') = 9
		ip link add kube-ipvs0 type veth # not every kernel has dummy devices
		`+strings.TrimPrefix(load["addresses"], "ip link add kube-ipvs0 type dummy; ")+`
		{ set +x; } 2>/dev/null
		ipset save | grep ^add | sort
		ip -o addr show dev kube-ipvs0 | awk '{print "addr", $4}' | sort`)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for _, want := range []string{
		"add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,198.51.100.0/24\n",
		"add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.14,tcp:80,128.0.0.0/1\n",
		"add KUBE-6-LOOP-BACK fd00::af4:10a,tcp:8080,fd00::af4:10a\n",
		"addr 10.96.0.10/32\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("missing %q in\n%s", want, out)
		}
	}
	written := text(t, Lower(p4).WriteSets) + text(t, Lower(p6).WriteSets)
	if got, want := strings.Count(string(out), "\nadd ")+1, strings.Count(written, "\nadd "); got != want {
		t.Errorf("the kernel has %d elements, want %d", got, want)
	}
}
