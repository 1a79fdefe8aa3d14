package userspace

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/proxyc/proxyc/ir"
)

// The tools load the output twice in a new network namespace, which then contains
// exactly these rules.
func TestToolsAccept(t *testing.T) {
	p4 := program()
	p6 := &ir.Program{Family: ir.IPv6, Node: p4.Node}
	p6.Node.IP = netip.MustParseAddr("2001:db8::11")
	name := ir.ServicePort{Service: ir.Name{Namespace: "default", Name: "six"}, Port: "dns", Protocol: ir.UDP}
	p6.Services = []ir.Service{{Name: name.Service, Frontends: []ir.Frontend{
		{Match: ir.Match{Addr: netip.MustParseAddr("fd00::10"), Protocol: ir.UDP, Port: 53}, Port: name},
		{Kind: ir.ExternalIP, Match: ir.Match{Addr: netip.MustParseAddr("2001:db8::99"), Protocol: ir.UDP, Port: 53}, Port: name},
		{Kind: ir.NodePort, Match: ir.Match{Protocol: ir.UDP, Port: 30053}, Port: name},
	}}}
	dir := t.TempDir()
	script := "export XTABLES_LOCKFILE=$PWD/lock\n"
	for _, o := range LowerAll(ir.NewPrograms(p4, p6)).Outputs() {
		var b bytes.Buffer
		if err := o.Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, o.File), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if o.Load != "" {
			script += o.Load + "\n" + o.Load + "\n" +
				"test $(grep -c '^-[AI]' " + o.File + ") = $(" + o.Format + "-save | grep -c '^-A')\n"
		}
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "sh", "-euxc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
