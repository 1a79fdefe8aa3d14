package packets

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
)

// takeoverFiles are the configuration and the objects of the recorded cluster.
func takeoverFiles() (config, cluster string) {
	return filepath.Join(takeoverDir, "config.yaml"), filepath.Join(takeoverDir, "cluster.yaml")
}

// TestReadOnlyCommands checks that --dry-run and --check, in every form, change nothing, and
// report the differences and whether there are any.
func TestReadOnlyCommands(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		m := newMachine(t, nil)
		if err := m.Sysctl("ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"); err != nil {
			t.Fatal(err)
		}
		config, cluster := takeoverFiles()
		before := m.dump()
		look := func(want int, flags ...string) ran {
			t.Helper()
			r := m.must(want, m.apply(p, config, cluster, flags...))
			m.same(before, strings.Join(flags, " "))
			if again := m.apply(p, config, cluster, flags...); again.stdout != r.stdout {
				t.Errorf("%v: the first and second outputs differ:\n%s\n%s", flags, r.stdout, again.stdout)
			}
			return r
		}
		text := look(0, "--dry-run").stdout
		wide := look(0, "--dry-run", "-o", "wide").stdout
		for _, word := range []string{"Service default/web: ", "total: "} {
			if !strings.Contains(text, word) || !strings.Contains(wide, word) {
				t.Errorf("no %q in\n%s\nor\n%s", word, text, wide)
			}
		}
		if strings.Contains(text, "Service default/web: spec.ports") || !strings.Contains(wide, "10.244.2.10") || !strings.Contains(wide, "EndpointSlice default/web-4") {
			t.Errorf("only wide output contains origins:\n%s\n%s", text, wide)
		}
		var plan struct {
			Rules struct {
				Total      struct{ Added, Changed, Removed int }
				Services   []struct{ Service any }
				Operations []struct{ Verb, Object string }
			}
		}
		if err := json.Unmarshal([]byte(look(0, "--dry-run", "-o", "json").stdout), &plan); err != nil {
			t.Fatal(err)
		}
		total := plan.Rules.Total
		if total.Added == 0 || len(plan.Rules.Operations) != total.Added+total.Changed+total.Removed || len(plan.Rules.Services) < 5 {
			t.Errorf("JSON: %+v", plan)
		}
		look(1, "--check")

		m.must(0, m.apply(p, config, cluster))
		before = m.dump()
		for _, output := range []string{"text", "wide", "json"} {
			look(0, "--check", "-o", output)
			look(0, "--dry-run", "-o", output)
		}
		if r := m.apply(p, config, cluster); r.code != 0 || r.stdout != "nothing to change\n" {
			t.Errorf("the second time: %s", r)
		}
	})
}

// drifts are manual removals and additions; word is their name in the plan.
var drifts = map[string][]struct{ name, command, word string }{
	"iptables": {
		{"a rule deleted", "iptables-VARIANT -t nat -D KUBE-SERVICES 1", "KUBE-SERVICES"},
		{"a chain flushed", "iptables-VARIANT -t nat -F KUBE-MARK-MASQ", "KUBE-MARK-MASQ"},
		{"a jump deleted", "iptables-VARIANT -t nat -D OUTPUT 1", "OUTPUT"},
		{"a rule added", "ip6tables-VARIANT -t nat -A KUBE-POSTROUTING -j RETURN", "KUBE-POSTROUTING"},
		{"the whole table flushed", "iptables-VARIANT -t nat -F", "KUBE-"},
	},
	"ipvs": {
		{"a real server deleted", "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.10:8080", "10.244.1.10:8080"},
		{"a real server added", "ipvsadm -a -t 10.96.0.10:80 -r 10.244.9.9:8080 -m", "10.244.9.9:8080"},
		{"a virtual server deleted", "ipvsadm -D -u [fd00:10:96::10]:53", "[fd00:10:96::10]:53"},
		{"a scheduler changed", "ipvsadm -E -t 10.96.0.10:80 -s lc", "10.96.0.10:80"},
		{"all virtual servers deleted", "ipvsadm -C", "10.96.0.10:80"},
		{"an element deleted", "ipset flush KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP"},
		{"an address deleted", "ip addr del 10.96.0.10/32 dev kube-ipvs0", "10.96.0.10"},
		{"an address added", "ip addr add 10.96.9.9/32 dev kube-ipvs0", "10.96.9.9"},
		{"the device deleted", "ip link del kube-ipvs0", "kube-ipvs0"},
		{"a rule deleted", "iptables-nft -t nat -D KUBE-SERVICES 1", "KUBE-SERVICES"},
	},
	"nftables": {
		{"an element deleted", "nft flush map ip proxyc service-ips", "service-ips"},
		{"a table deleted", "nft delete table ip6 proxyc", "ip6"},
	},
}

// TestDrift checks that manual changes are found, reported and repaired.
func TestDrift(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		m := newMachine(t, nil)
		config, cluster := takeoverFiles()
		m.must(0, m.apply(p, config, cluster))
		wanted := m.dump()
		for _, d := range drifts[p.mode] {
			command := strings.Fields(strings.ReplaceAll(d.command, "VARIANT", p.variant))
			m.tool("", command[0], command[1:]...)
			drifted := m.dump()
			if drifted == wanted {
				t.Fatalf("%s: nothing has changed", d.name)
			}
			if r := m.must(1, m.apply(p, config, cluster, "--check", "-o", "wide")); !strings.Contains(r.stdout, d.word) {
				t.Errorf("%s: %s is not reported: %s", d.name, d.word, r)
			}
			m.same(drifted, d.name+", checked")
			m.must(0, m.apply(p, config, cluster))
			m.must(0, m.apply(p, config, cluster, "--check"))
			m.same(wanted, d.name+", applied again")
		}
	})
}

// TestApplyErrors checks that proxyc reports why it cannot work, once, and changes nothing.
func TestApplyErrors(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		m := newMachine(t, nil)
		config, cluster := takeoverFiles()
		config, cluster = m.file("config.yaml", readFile(t, config)), m.file("cluster.yaml", readFile(t, cluster))
		m.must(0, m.apply(p, config, m.file("none.yaml", world{}.snapshot(t)), "--allow-empty"))
		before := m.dump()
		clear := func(name string, r ran, words ...string) {
			t.Helper()
			m.must(2, r)
			if said := "\n" + r.stderr; strings.Count(said, "\nproxyc: ")+strings.Count(said, "\nerror: ") != 1 {
				t.Errorf("%s: want one error: %s", name, r)
			}
			for _, w := range words {
				if !strings.Contains(r.stderr, w) {
					t.Errorf("%s: want %q in the error: %s", name, w, r)
				}
			}
			m.same(before, name)
		}
		for _, dir := range []string{m.dir, filepath.Dir(m.dir)} {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		asNobody := func(args ...string) ran {
			_, wait := m.start(func(cmd *exec.Cmd) {
				cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			}, args...)
			return wait()
		}
		clear("apply as nobody", asNobody(applyArgs(p, config, cluster)...), "apply", "root")
		clear("cleanup as nobody", asNobody("cleanup"), "cleanup", "root")

		_, wait := m.start(func(cmd *exec.Cmd) { // root, but in another user namespace
			id := []syscall.SysProcIDMap{{Size: 1}}
			cmd.SysProcAttr.Cloneflags, cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = syscall.CLONE_NEWUSER, id, id
		}, applyArgs(p, config, cluster)...)
		clear("apply as root of nothing", wait(), "ermi")

		clear("no such file", m.apply(p, config, filepath.Join(m.dir, "missing.yaml")), "missing.yaml")
		clear("no snapshot", m.proxyc("apply", "-c", config, "--hostname-override", "node1"), "-s")
		clear("both", m.apply(p, config, cluster, "--dry-run", "--check"), "--dry-run", "--check")
		clear("mode that has no applier", m.apply(plane{mode: "kernelspace"}, config, cluster), "kernelspace", "iptables")
		clear("mode that needs its process", m.apply(plane{mode: "userspace"}, config, cluster), "userspace", "watch")

		if p.mode == "nftables" {
			m.must(0, m.proxyc("cleanup"))
			m.ownTable("table ip6 proxyc")
			before = m.dump()
			for _, flags := range [][]string{nil, {"--check"}, {"--dry-run"}, {"--yes-takeover"}} {
				clear("foreign table", m.apply(p, config, cluster, flags...), "table ip6 proxyc", "another program")
			}
		}
		if p.mode == "iptables" {
			nothing := *m
			nothing.env = append(nothing.env, "PATH="+t.TempDir())
			clear("no tools", nothing.apply(p, config, cluster), "iptables-"+p.variant)
		}
	})
}

// ownTable creates a table that a process owns until the test ends.
func (m *machine) ownTable(table string) {
	m.t.Helper()
	cmd := m.prepare("nft", "-i")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	wait, err := m.Start(cmd)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { stdin.Close(); wait() })
	fmt.Fprintf(stdin, "add %s { flags owner; }\nlist tables\n", table)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if lines.Text() == table {
			return
		}
	}
	m.t.Fatalf("%s was not created", table)
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestConcurrentApply checks that of two concurrent applies one waits. With a timeout, it reports
// the owner of the lock. Read-only commands do not wait.
func TestConcurrentApply(t *testing.T) {
	t.Parallel()
	eachPlane(t, func(t *testing.T, p plane) {
		t.Parallel()
		m := newMachine(t, nil)
		config, cluster := takeoverFiles()
		before := m.dump()
		var lock *apply.Lock
		err := m.Do(func() (err error) {
			lock, err = apply.AcquireLock(context.Background(), filepath.Dir(m.lockFile()))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r := m.must(2, m.apply(p, config, cluster, "--lock-timeout", "100ms"))
		if owner := fmt.Sprintf("process %d (", os.Getpid()); !strings.Contains(r.stderr, owner) {
			t.Errorf("want %q: %s", owner, r)
		}
		m.same(before, "locked out")

		m.must(0, m.proxyc("cleanup", "--dry-run"))
		m.must(1, m.apply(p, config, cluster, "--check"))

		ended := make(chan ran, 2)
		for range cap(ended) {
			_, wait := m.start(nil, applyArgs(p, config, cluster)...)
			go func() { ended <- wait() }()
		}
		select {
		case r := <-ended:
			t.Fatalf("did not wait: %s", r)
		case <-time.After(500 * time.Millisecond):
		}
		m.same(before, "waiting")
		if err := lock.Release(); err != nil {
			t.Fatal(err)
		}
		for range cap(ended) {
			m.must(0, <-ended)
		}
		m.must(0, m.apply(p, config, cluster, "--check"))
	})
}

// foreignRules are rules of other programs, by the tool that loads them.
var foreignRules = []struct{ tool, text string }{
	{"nft", `table inet firewall {
	set allowed { type ipv4_addr; flags interval; elements = { 192.0.2.0/24, 198.51.100.7 } }
	chain input { type filter hook input priority 10; policy accept; ip saddr @allowed accept; ct state invalid drop; }
}
table ip proxyc-like {
	map service-ips { type ipv4_addr : verdict; }
	chain c { }
}
table ip6 kube-router {
	chain KUBE-SERVICES { ip6 daddr ::1 drop; }
}
`},
	{"iptables", `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:DOCKER - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-ROUTER-HAIRPIN - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A KUBE-ROUTER-HAIRPIN -j RETURN
COMMIT
*filter
:DOCKER-USER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -s 198.51.100.66/32 -m comment --comment "not KUBE-SERVICES" -j DROP
-A FORWARD -j DOCKER-USER
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
`},
	{"ip6tables", `*mangle
:KUBE-IPTABLES-HINT - [0:0]
COMMIT
*raw
-A PREROUTING -s 2001:db8:66::/48 -j NOTRACK
COMMIT
*filter
:DOCKER-USER - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j DOCKER-USER
-A OUTPUT -j KUBE-FIREWALL
COMMIT
`},
}

func (m *machine) loadForeign() {
	m.t.Helper()
	for _, f := range foreignRules {
		if f.tool == "nft" {
			m.tool(f.text, "nft", "-f", "-")
			continue
		}
		for _, variant := range []string{"nft", "legacy"} {
			m.tool(f.text, f.tool+"-"+variant+"-restore", "--noflush")
		}
	}
}

// TestCleanup checks that everything that kube-proxy and proxyc left, in all modes together, is
// removed, and that foreign rules are unchanged to the byte.
func TestCleanup(t *testing.T) {
	t.Parallel()
	applytest.RequireRoot(t)
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprintf("foreign=%v", foreign), func(t *testing.T) {
			if !foreign {
				applytest.Long(t)
			}
			m := newMachine(t, nil)
			config, cluster := takeoverFiles()
			m.kubelet = foreign
			if foreign {
				m.loadForeign()
			}
			clean := m.dump()
			r := m.must(0, m.proxyc("cleanup"))
			if r.stdout != "nothing to remove\n" {
				t.Errorf("nothing existed: %s", r)
			}
			m.same(clean, "cleanup of nothing")

			for _, p := range planes {
				m.must(0, m.apply(p, config, cluster))
			}
			for _, p := range peers {
				p.load(m)
			}
			full := m.dump()
			for _, args := range [][]string{{"cleanup", "--dry-run"}, {"apply", "--cleanup", "--dry-run"}} {
				r := m.must(0, m.proxyc(args...))
				if n := strings.Count(r.stdout, "remove "); n < 8 {
					t.Errorf("too few: %s", r)
				}
				m.same(full, "cleanup --dry-run")
			}
			m.must(0, m.proxyc("cleanup"))
			m.same(clean, "cleanup")
			r = m.must(0, m.proxyc("apply", "--cleanup"))
			if r.stdout != "nothing to remove\n" {
				t.Errorf("the second time: %s", r)
			}
			m.same(clean, "cleanup for the second time")
		})
	}
}
