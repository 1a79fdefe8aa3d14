package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxyc/proxyc/ir"
)

var (
	web      = ir.Name{Namespace: "ns", Name: "web"}
	api      = ir.Name{Namespace: "ns", Name: "api"}
	loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
)

// newChecks returns the checks of a healthy proxy, and a list of failures.
func newChecks(t *testing.T, f ir.Family) (c *HealthChecks, failed *[]string) {
	failed = new([]string)
	c = &HealthChecks{
		Family: f,
		Health: NewHealth(timeout, newClock().now),
		Failed: func(service ir.Name, port uint16, err error) {
			*failed = append(*failed, fmt.Sprintf("%s %d: %v", service, port, err))
		},
		Log: quiet(),
	}
	t.Cleanup(c.Close)
	return c, failed
}

type checks = map[ir.Name]ir.HealthCheck

// weight requests a health check. It returns the reported endpoints, or -1 if the port is closed.
func weight(t *testing.T, host string, port uint16) int {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(fmt.Sprintf("http://%s/", net.JoinHostPort(host, fmt.Sprint(port))))
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	n := -2
	fmt.Sscan(resp.Header.Get("X-Load-Balancing-Endpoint-Weight"), &n)
	return n
}

// wantWeights requests health checks on 127.0.0.1.
func wantWeights(t *testing.T, step string, want map[uint16]int) {
	t.Helper()
	got := map[uint16]int{}
	for port := range want {
		got[port] = weight(t, "127.0.0.1", port)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: endpoints by port (-want +got):\n%s", step, d)
	}
}

func TestCheckAnswer(t *testing.T) {
	body := func(local int, healthy bool) string {
		return fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", local, healthy)
	}
	tests := []struct {
		name   string
		local  int
		behind bool
		code   int
	}{
		{"endpoints", 2, false, 200},
		{"no endpoint", 0, false, 503},
		{"proxy behind", 2, true, 503},
		{"neither", 0, true, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := newChecks(t, ir.IPv4)
			clock := newClock()
			c.Health = NewHealth(timeout, clock.now) // no Node is known; this does not count here
			if tt.behind {
				c.Health.Updated(ir.IPv6) // of any family
				c.Health.Queued(ir.IPv6)
				clock.advance(timeout)
			}
			port := freePort(t)
			c.Sync(loopback, checks{web: {Port: port, Local: tt.local}})
			for _, method := range []string{"GET", "POST"} {
				req, _ := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d/whatever?x", port), nil)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != tt.code {
					t.Errorf("code: got %d, want %d", resp.StatusCode, tt.code)
				}
				if d := cmp.Diff(body(tt.local, !tt.behind), string(got)); d != "" {
					t.Errorf("body (-want +got):\n%s", d)
				}
				header := map[string]string{}
				for _, name := range []string{"Content-Type", "X-Content-Type-Options", "X-Load-Balancing-Endpoint-Weight"} {
					header[name] = resp.Header.Get(name)
				}
				want := map[string]string{
					"Content-Type":                     "application/json",
					"X-Content-Type-Options":           "nosniff",
					"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(tt.local),
				}
				if d := cmp.Diff(want, header); d != "" {
					t.Errorf("headers (-want +got):\n%s", d)
				}
			}
		})
	}
}

func TestChecksSync(t *testing.T) {
	c, failed := newChecks(t, ir.IPv4)
	one, two := freePort(t), freePort(t)
	sync := func(want checks) { c.Sync(loopback, want) }

	sync(checks{web: {Port: one, Local: 1}})
	wantWeights(t, "opened", map[uint16]int{one: 1, two: -1})

	sync(checks{web: {Port: two, Local: 1}})
	wantWeights(t, "port changed", map[uint16]int{one: -1, two: 1})

	sync(checks{web: {Port: one, Local: 1}, api: {Port: two, Local: 5}})
	wantWeights(t, "port taken over in the same Sync", map[uint16]int{one: 1, two: 5})

	c.Sync([]netip.Addr{netip.MustParseAddr("127.0.0.2")}, checks{web: {Port: one, Local: 1}, api: {Port: two, Local: 5}})
	wantWeights(t, "addresses changed", map[uint16]int{one: -1, two: -1})
	if got := weight(t, "127.0.0.2", two); got != 5 {
		t.Errorf("at the new address: got %d, want 5", got)
	}

	sync(checks{api: {Port: two, Local: 5}})
	wantWeights(t, "Service gone", map[uint16]int{one: -1, two: 5})

	c.Close()
	wantWeights(t, "closed", map[uint16]int{one: -1, two: -1})
	sync(checks{web: {Port: one, Local: 7}})
	wantWeights(t, "started again", map[uint16]int{one: 7})
	if len(*failed) > 0 {
		t.Errorf("failed: got %q", *failed)
	}
}

// A check that does not change keeps its socket and connections.
func TestChecksKeepConnections(t *testing.T) {
	c, _ := newChecks(t, ir.IPv4)
	port := freePort(t)
	c.Sync(loopback, checks{web: {Port: port, Local: 1}})
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for _, want := range []string{"1", "0", "3"} {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if got := resp.Header.Get("X-Load-Balancing-Endpoint-Weight"); got != want {
			t.Errorf("weight: got %s, want %s", got, want)
		}
		next := map[string]int{"1": 0, "0": 3}[want]
		c.Sync(loopback, checks{web: {Port: port, Local: next}, api: {Port: freePort(t), Local: 1}})
	}
	c.Close()
	if _, err := r.ReadByte(); err == nil {
		t.Error("connection after Close: still open")
	}
}

func TestChecksOfBothFamilies(t *testing.T) {
	port := freePort(t)
	all := ir.NodePortAddrs{All: true}
	for _, f := range []ir.Family{ir.IPv4, ir.IPv6} {
		c, failed := newChecks(t, f)
		c.Sync(ListenAddrs(f, all, nil), checks{web: {Port: port, Local: int(f)}})
		if len(*failed) > 0 {
			t.Fatalf("%s: got %q", f, *failed)
		}
	}
	for host, want := range map[string]int{"127.0.0.1": 4, "::1": 6} {
		if got := weight(t, host, port); got != want {
			t.Errorf("%s: got %d, want %d", host, got, want)
		}
	}
}

func TestCheckPortInUse(t *testing.T) {
	c, failed := newChecks(t, ir.IPv4)
	taken, free := freePort(t), freePort(t)
	l := occupy(t, fmt.Sprintf("127.0.0.1:%d", taken))
	want := checks{web: {Port: taken, Local: 1}, api: {Port: free, Local: 2}}
	for range 2 { // it is reported once
		c.Sync(loopback, want)
		if len(*failed) != 1 || !strings.Contains((*failed)[0], fmt.Sprintf("ns/web %d: listen tcp4 127.0.0.1:%d", taken, taken)) {
			t.Errorf("failed: got %q, want one of ns/web", *failed)
		}
		wantWeights(t, "the other Service", map[uint16]int{free: 2})
	}
	if why := c.Failing(); !strings.Contains(why, fmt.Sprintf("healthCheckNodePort %d of Service ns/web does not answer: listen tcp4", taken)) {
		t.Errorf("failing: %q", why)
	}
	*failed = nil
	l.Close()
	c.Sync(loopback, want)
	wantWeights(t, "released", map[uint16]int{taken: 1, free: 2})
	if want := []string{fmt.Sprintf("ns/web %d: <nil>", taken)}; !slices.Equal(*failed, want) || c.Failing() != "" {
		t.Errorf("after release: reported %q, want %q; failing: %q", *failed, want, c.Failing())
	}
}

// A port is opened when it becomes free, whether or not anything changes. A failure of another port
// of the Service is reported separately.
func TestCheckTriedAgain(t *testing.T) {
	c, failed := newChecks(t, ir.IPv4)
	one, two := freePort(t), freePort(t)
	first, second := occupy(t, fmt.Sprintf("127.0.0.1:%d", one)), occupy(t, fmt.Sprintf("127.0.0.1:%d", two))
	defer second.Close()
	c.Sync(loopback, checks{web: {Port: two, Local: 1}})
	c.Change(map[ir.Name]*ir.HealthCheck{web: {Port: one, Local: 1}})
	if len(*failed) != 3 || (*failed)[1] != fmt.Sprintf("ns/web %d: <nil>", two) {
		t.Fatalf("reported: %q, want a port that fails, that it is over, and another", *failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	again, waits, ended := make(chan time.Time), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx, func(d time.Duration) <-chan time.Time {
			if d != 5*time.Second {
				t.Errorf("waits %s, want 5s", d)
			}
			waits <- struct{}{}
			return again
		})
	}()
	try := func() {
		again <- time.Time{}
		<-waits // it has ended
	}
	<-waits
	try()
	if len(*failed) != 3 {
		t.Errorf("reported at each try: %q", *failed)
	}
	first.Close()
	try()
	wantWeights(t, "free", map[uint16]int{one: 1})
	cancel()
	<-ended
}

// If two Services have the same port, one of them owns it, always the same one, until it is
// removed. The other one's error names it. The node is not the cause.
func TestChecksClaimTheSamePort(t *testing.T) {
	c, failed := newChecks(t, ir.IPv4)
	port := freePort(t)
	c.Sync(loopback, checks{web: {Port: port, Local: 1}, api: {Port: port, Local: 2}})
	wantWeights(t, "claimed twice", map[uint16]int{port: 2})
	if want := fmt.Sprintf("ns/web %d: Service ns/api has the same healthCheckNodePort: set another one", port); len(*failed) != 1 || (*failed)[0] != want || c.Failing() != "" {
		t.Errorf("failed: got %q, want %q; failing: %q", *failed, want, c.Failing())
	}
	c.Sync(loopback, checks{web: {Port: port, Local: 1}})
	wantWeights(t, "the first has gone", map[uint16]int{port: 1})
}

// A change affects the named Services, and those that failed before.
func TestChecksChange(t *testing.T) {
	c, failed := newChecks(t, ir.IPv4)
	one, two, taken := freePort(t), freePort(t), freePort(t)
	l := occupy(t, fmt.Sprintf("127.0.0.1:%d", taken))
	c.Sync(loopback, checks{web: {Port: one, Local: 1}})

	c.Change(map[ir.Name]*ir.HealthCheck{api: {Port: two, Local: 2}})
	wantWeights(t, "added", map[uint16]int{one: 1, two: 2})
	c.Change(map[ir.Name]*ir.HealthCheck{api: {Port: one, Local: 3}, web: nil})
	wantWeights(t, "taken over", map[uint16]int{one: 3, two: -1})
	if len(*failed) > 0 {
		t.Errorf("failed: got %q", *failed)
	}

	c.Change(map[ir.Name]*ir.HealthCheck{web: {Port: taken, Local: 4}})
	c.Change(nil)
	if len(*failed) != 1 {
		t.Errorf("failed: got %q, want that it is reported once", *failed)
	}
	l.Close()
	c.Change(map[ir.Name]*ir.HealthCheck{api: nil})
	wantWeights(t, "tried again beside another change", map[uint16]int{one: -1, taken: 4})
	l = occupy(t, fmt.Sprintf("127.0.0.1:%d", one))
	c.Change(map[ir.Name]*ir.HealthCheck{api: {Port: one, Local: 1}})
	c.Change(map[ir.Name]*ir.HealthCheck{api: nil})
	l.Close()
	c.Change(nil)
	wantWeights(t, "failed, and gone since", map[uint16]int{one: -1, taken: 4})
}

func TestListenAddrs(t *testing.T) {
	node := []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7"),
		netip.MustParseAddr("::1"), netip.MustParseAddr("2001:db8::1"),
	}
	prefixes := func(list ...string) ir.NodePortAddrs {
		var p ir.NodePortAddrs
		for _, s := range list {
			p.Prefixes = append(p.Prefixes, ir.NodePortPrefix{Prefix: netip.MustParsePrefix(s), Assigned: true})
		}
		return p
	}
	tests := []struct {
		name   string
		family ir.Family
		ports  ir.NodePortAddrs
		want   []string
	}{
		{"all, IPv4", ir.IPv4, ir.NodePortAddrs{All: true}, []string{"0.0.0.0"}},
		{"all, IPv6", ir.IPv6, ir.NodePortAddrs{All: true}, []string{"::"}},
		{"a network", ir.IPv4, prefixes("192.0.2.0/24"), []string{"192.0.2.1"}},
		{"overlapping networks", ir.IPv4, prefixes("192.0.2.0/24", "192.0.2.1/32", "198.51.0.0/16"), []string{"192.0.2.1", "198.51.100.7"}},
		{"loopback", ir.IPv4, prefixes("127.0.0.0/8"), []string{"127.0.0.1"}},
		{"IPv6", ir.IPv6, prefixes("2001:db8::/64"), []string{"2001:db8::1"}},
		{"networks of both families", ir.IPv6, prefixes("192.0.2.0/24", "2001:db8::/64"), []string{"2001:db8::1"}},
		{"none held", ir.IPv4, prefixes("203.0.113.0/24"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, a := range ListenAddrs(tt.family, tt.ports, node) {
				got = append(got, a.String())
			}
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
