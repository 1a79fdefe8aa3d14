package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

// is reports whether a check has a finding with a status and a text.
func is(found []Finding, check string, s Status, text string) bool {
	for _, f := range found {
		if f.Check == check && f.Status == s && strings.Contains(f.Found, text) && (f.Fix != "" || s == OK) {
			return true
		}
	}
	return false
}

func expect(t *testing.T, found []Finding, check string, s Status, text string) {
	t.Helper()
	if !is(found, check, s, text) {
		t.Errorf("want %s %s: …%s… among %+v", s, check, text, found)
	}
}

func TestConntrack(t *testing.T) {
	const stat = "entries  clashres found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error\n" +
		"00000010  00000000 0 0 0 0 0 0 0 00000000 00000000 00000000 0\n00000010  00000000 0 0 0 0 0 0 0 0000000a 00000000 0000001f 0\n"
	for _, tt := range []struct {
		count string
		want  Status
	}{{"0", OK}, {"749", OK}, {"750", Warning}, {"949", Warning}, {"950", Error}, {"1000", Error}} {
		root := t.TempDir()
		for name, text := range map[string]string{
			"proc/sys/net/netfilter/nf_conntrack_count": tt.count, "proc/sys/net/netfilter/nf_conntrack_max": "1000", "proc/net/stat/nf_conntrack": stat,
			"proc/net/netstat": "TcpExt: PruneCalled IPReversePathFilter TCPTimeWaitOverflow\nTcpExt: 0 7 0\nIpExt: InNoRoutes InTruncatedPkts\nIpExt: 0 0\n",
		} {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		found := (&Node{Root: sysctl.Root(root)}).Examine(t.Context())
		text := tt.count + " of 1000 entries"
		if tt.want == Error {
			text = "is full or nearly (net.netfilter.nf_conntrack_max is 1000): new connections may be dropped"
		}
		expect(t, found, "conntrack", tt.want, text)
		expect(t, found, "conntrack early_drop", Warning, "31 connections")
		expect(t, found, "conntrack insert_failed", Warning, "10 packets")
		expect(t, found, "rp_filter", Warning, "7 packets")
		if is(found, "conntrack drop", Warning, "") {
			t.Errorf("a column of zeros is reported: %+v", found)
		}
	}
	expect(t, (&Node{Root: sysctl.Root(t.TempDir())}).Examine(t.Context()), "conntrack", Warning, "does not track")
}

// A setting left by mode iptables is reported in a mode that does not need it.
func TestLocalhost(t *testing.T) {
	root := t.TempDir()
	setting := filepath.Join(root, "proc/sys/net/ipv4/conf/all/route_localnet")
	if err := os.MkdirAll(filepath.Dir(setting), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		value    string
		mode     ir.Mode
		reported bool
	}{{"1", ir.ModeNFTables, true}, {"0", ir.ModeNFTables, false}, {"1", ir.ModeIPTables, false}} {
		if err := os.WriteFile(setting, []byte(tt.value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		found := (&Node{Root: sysctl.Root(root), Mode: tt.mode}).Examine(t.Context())
		if reported := is(found, "localhost", Warning, "reach listeners on 127.0.0.1"); reported != tt.reported {
			t.Errorf("mode %s, %s: reported %t", tt.mode, tt.value, reported)
		}
	}
}

// If a daemon runs, the finding about kube-proxy's rules does not suggest a takeover.
func TestKubeProxyBesideDaemon(t *testing.T) {
	n := &Node{Leftovers: func(context.Context) ([]apply.Leftover, error) {
		return []apply.Leftover{{Object: "table ip kube-proxy", KubeProxy: true}}, nil
	}}
	for who, found := range map[string]string{"": "its rules exist: table ip kube-proxy", "process 7": "its rules exist in addition to those of process 7: table ip kube-proxy"} {
		n.Writer = func() (string, string) { return who, "" }
		got := n.Examine(t.Context())
		expect(t, got, "kube-proxy", Warning, found)
		for _, f := range got {
			if f.Check == "kube-proxy" && strings.Contains(f.Fix, "apply") != (who == "") {
				t.Errorf("%q: %+v", who, f)
			}
		}
	}
}

// Bridges in the fast path are reported; without any there is no finding.
func TestFastpath(t *testing.T) {
	root := t.TempDir()
	setting := filepath.Join(root, "proc/sys/net/bridge/bridge-nf-call-iptables")
	if err := os.MkdirAll(filepath.Dir(setting), 0o755); err != nil {
		t.Fatal(err)
	}
	n := &Node{Root: sysctl.Root(root), Bridges: func() ([]string, error) { return []string{"cni0"}, nil }}
	for value, want := range map[string]Finding{
		"0": {Status: OK, Found: "packets of pods on bridge cni0 use it"},
		"1": {Status: Warning, Found: "one direction of each connection does not use the fast path: net.bridge.bridge-nf-call-iptables = 1"},
	} {
		if err := os.WriteFile(setting, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		expect(t, n.Examine(t.Context()), "fast path", want.Status, want.Found)
	}
	for _, bridges := range []func() ([]string, error){nil, func() ([]string, error) { return nil, nil }} {
		n.Bridges = bridges
		for _, s := range []Status{OK, Warning} {
			if found := n.Examine(t.Context()); is(found, "fast path", s, "") {
				t.Errorf("there is no fast path: %+v", found)
			}
		}
	}
}

// fakeAPI is an API server with configurable results.
type fakeAPI struct {
	version string
	status  int
	rights  []rbacv1.PolicyRule // permissions of the account
	date    time.Time
	address string // address of the Node; "" if it does not exist
}

// may reports whether the account has a permission.
func (f *fakeAPI) may(verb, group, resource string) bool {
	return slices.ContainsFunc(f.rights, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
	})
}

// shipped returns the permissions in docs/deploy/rbac.yaml.
func shipped(t *testing.T) []rbacv1.PolicyRule {
	text, err := os.ReadFile("../../docs/deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte(doc), &role); err == nil && role.Kind == "ClusterRole" {
			return role.Rules
		}
	}
	t.Fatal("docs/deploy/rbac.yaml has no ClusterRole")
	return nil
}

// without returns permissions for all resources but one.
func without(rights []rbacv1.PolicyRule, resource string) []rbacv1.PolicyRule {
	return slices.DeleteFunc(slices.Clone(rights), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", f.date.UTC().Format(http.TimeFormat))
	switch {
	case f.status != 0:
		w.WriteHeader(f.status)
		w.Write([]byte(f.version))
	case r.URL.Path == "/version":
		w.Write([]byte(f.version))
	case r.Method == http.MethodPost:
		var review authorizationv1.SelfSubjectAccessReview
		json.NewDecoder(r.Body).Decode(&review)
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = f.may(a.Verb, a.Group, a.Resource)
		json.NewEncoder(w).Encode(review)
	case r.URL.Path != "/api/v1/nodes" || !f.may("list", "", "nodes"):
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`{"kind":"Status","message":"nodes is forbidden: User \"proxyc\" cannot do that"}`))
	case f.address == "" || r.URL.Query().Get("fieldSelector") != "metadata.name=node1":
		w.Write([]byte(`{"items":[]}`))
	default:
		w.Write([]byte(`{"items":[{"status":{"addresses":[{"type":"InternalIP","address":"` + f.address + `"},{"type":"Hostname","address":"node1"}]}}]}`))
	}
}

func TestAPI(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const well = `{"gitVersion":"v1.36.3"}`
	role := shipped(t)
	for _, tt := range []struct {
		name  string
		api   fakeAPI
		check string
		want  Status
		text  string
	}{
		{"no nodes", fakeAPI{version: well, rights: without(role, "nodes"), date: now, address: "192.0.2.11"}, "Node", Error, "nodes is forbidden"},
		{"well", fakeAPI{version: well, rights: role, date: now, address: "192.0.2.11"}, "Node", OK, "node1 has addresses"},
		{"well", fakeAPI{version: well, rights: role, date: now, address: "192.0.2.11"}, "rights", OK, "all granted"},
		{"well", fakeAPI{version: well, rights: role, date: now, address: "192.0.2.11"}, "clock", OK, "agrees"},
		{"well", fakeAPI{version: well, rights: role, date: now, address: "192.0.2.11"}, "API server", OK, "v1.36.3"},
		{"another node", fakeAPI{version: well, rights: role, date: now, address: "192.0.2.12"}, "Node", Error, "192.0.2.12, which no interface"},
		{"no such node", fakeAPI{version: well, rights: role, date: now}, "Node", Error, "no Node node1"},
		{"a clock that is a minute late", fakeAPI{version: well, rights: role, date: now.Add(-time.Minute), address: "192.0.2.11"}, "clock", Warning, "1m0s"},
		{"a clock that is an hour early", fakeAPI{version: well, rights: role, date: now.Add(time.Hour), address: "192.0.2.11"}, "clock", Error, "1h0m0s"},
		{"no slices", fakeAPI{version: well, rights: without(role, "endpointslices"), date: now, address: "192.0.2.11"}, "rights", Error, "may not list, watch endpointslices"},
		{"no events", fakeAPI{version: well, rights: without(role, "events"), date: now, address: "192.0.2.11"}, "rights", Warning, "create events; proxyc works without"},
		{"refused", fakeAPI{status: 401, date: now}, "API server", Error, "401 Unauthorized"},
		{"another server", fakeAPI{version: "<html>", date: now}, "API server", Error, "not JSON"},
	} {
		server := httptest.NewServer(&tt.api)
		n := &Node{Root: sysctl.Root(t.TempDir()),
			API: &API{Server: server.URL, Client: server.Client(), NodeName: "node1", Now: func() time.Time { return now }},
			Interfaces: func() ([]compiler.Interface, error) {
				return []compiler.Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.11/24")}}}, nil
			}}
		found := n.Examine(t.Context())
		t.Run(tt.name, func(t *testing.T) { expect(t, found, tt.check, tt.want, tt.text) })
		if Healthy(found) != (tt.want != Error) {
			t.Errorf("%s: well: %t: %+v", tt.name, Healthy(found), found)
		}
		server.Close()
		found = n.Examine(t.Context())
		expect(t, found, "API server", Error, "connection refused")
	}
}

// A failed request has the fix for its cause.
func TestRemedies(t *testing.T) {
	stranger := httptest.NewTLSServer(&fakeAPI{})
	defer stranger.Close()
	stranger.Config.ErrorLog = log.New(io.Discard, "", 0)
	expired := httptest.NewServer(&fakeAPI{status: http.StatusUnauthorized})
	defer expired.Close()
	for server, do := range map[string]string{stranger.URL: "certificate-authority", expired.URL: "renew the credentials"} {
		n := &Node{Root: sysctl.Root(t.TempDir()), API: &API{Server: server, Client: &http.Client{}, NodeName: "node1", Now: time.Now}}
		found := n.Examine(t.Context())
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.Check == "API server" && strings.Contains(f.Fix, do) }) {
			t.Errorf("want the hint …%s… among %+v", do, found)
		}
	}
}

// Without forwarding in the node's first family no Service works. In the other it may be intended.
func TestForwarding(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"proc/sys/net/ipv4/ip_forward", "proc/sys/net/ipv6/conf/all/forwarding"} {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err = cmp.Or(err, os.WriteFile(path, []byte("0\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for addrs, want := range map[string][2]Status{
		"192.0.2.11/24":                   {Error, Warning},
		"192.0.2.11/24 2001:db8:1::11/64": {Error, Warning},
		"2001:db8:1::11/64":               {Warning, Error},
	} {
		n := &Node{Root: sysctl.Root(root), Interfaces: func() ([]compiler.Interface, error) {
			i := compiler.Interface{Name: "eth0"}
			for _, a := range strings.Fields(addrs) {
				i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
			}
			return []compiler.Interface{i}, nil
		}}
		found := n.Examine(t.Context())
		expect(t, found, "forwarding", want[0], "net.ipv4.ip_forward is 0")
		expect(t, found, "forwarding", want[1], "net.ipv6.conf.all.forwarding is 0")
	}
}
