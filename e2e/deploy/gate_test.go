package deploy

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// kubectl replaces a kubectl that reaches a cluster of two nodes. FAULT selects what is wrong in
// the cluster. The arguments of proxyc are written to the file ASKED.
const kubectl = `#!/bin/sh
case "$*" in
*"rollout status daemonset/proxyc-canary "*) [ "$FAULT" != rollout ] ;;
*"get controllerrevisions -l k8s-app=proxyc-canary "*) echo 2026-03-01T10:00:00Z ;;
*"get pods -l k8s-app=proxyc-canary "*)
	ended=2026-02-28T23:00:00Z
	[ "$FAULT" = restarts ] && ended=2026-03-01T11:00:00Z
	printf 'p1 n1 \np2 n2 %s\n' $ended ;;
"get servicecidrs") ;;
"get services,endpointslices,nodes,servicecidrs -A -o json") echo snapshot >>"$ASKED"; echo '{"kind": "List"}' ;;
*" exec "*)
	echo "$*" | sed 's,.* exec ,,' >>"$ASKED"
	case "$*" in
	*" status --ignore-findings "*)
		: >"$ASKED.$4" # the Pod's name: until both are asked, none answers
		for try in $(seq 100); do [ -e "$ASKED.p1" ] && [ -e "$ASKED.p2" ] && break; sleep 0.1; done
		[ -e "$ASKED.p1" ] && [ -e "$ASKED.p2" ] && [ "$FAULT" != status ] ;;
	*" prove "*)
		read -r list && [ "$list" = '{"kind": "List"}' ] || exit 2
		[ "$FAULT" = once ] && { [ -e "$ASKED.once" ] || { : >"$ASKED.once"; exit 1; }; }
		[ "$FAULT" != prove ] || exit 1
		echo "equal: ir and kernel, IPv4, 30 classes of packets"
		[ "$FAULT" != finding ] || { echo "error: Service shop/web: spec.externalIPs[0]: belongs to another" >&2; exit 2; } ;;
	*) exit 2 ;;
	esac ;;
*) echo "kubectl $*: not expected" >&2; exit 2 ;;
esac
`

func TestGate(t *testing.T) {
	gate, err := filepath.Abs(manifests + "/gate")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	answer := ""
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(answer)) }))
	defer prometheus.Close()
	const calm = `{"status":"success","data":{"resultType":"vector","result":[]}}`
	for _, tt := range []struct {
		name, fault, nodes, alerts, want string
		fails                            bool
	}{
		{name: "no number of nodes", fails: true, want: "usage: gate DAEMONSET NODES"},
		{name: "well", nodes: "2", alerts: calm, want: "well on 2 nodes"},
		{name: "a change meanwhile", fault: "once", nodes: "2", alerts: calm, want: "well on 2 nodes"},
		{name: "a Service is wrong, and left out", fault: "finding", nodes: "2", alerts: calm, want: "well on 2 nodes"},
		{name: "a label is missing", nodes: "5", alerts: calm, fails: true, want: "on 2 nodes, not on 5"},
		{name: "image does not start", fault: "rollout", nodes: "2", alerts: calm, fails: true, want: "not rolled out"},
		{name: "restarts", fault: "restarts", nodes: "2", alerts: calm, fails: true, want: "p2 on n2 was started anew at 2026-03-01T11:00:00Z"},
		{name: "status", fault: "status", nodes: "2", alerts: calm, fails: true, want: "n2 is not well"},
		{name: "other rules", fault: "prove", nodes: "2", alerts: calm, fails: true, want: "the rules of n2 are not shown"},
		{name: "an alert", nodes: "2", alerts: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"alertname":"ProxycBehind"}}]}}`, fails: true, want: "ProxycBehind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer = tt.alerts
			asked := filepath.Join(t.TempDir(), "asked")
			cmd := exec.CommandContext(t.Context(), gate, strings.Fields("proxyc-canary "+tt.nodes)...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "FAULT="+tt.fault, "ASKED="+asked, "PROMETHEUS="+prometheus.URL)
			out, err := cmd.CombinedOutput()
			if (err != nil) != tt.fails || !strings.Contains(string(out), tt.want) {
				t.Fatalf("%v, want %q in:\n%s", err, tt.want, out)
			}
			if tt.fails {
				return
			}
			passes := 1
			if tt.fault == "once" {
				passes = 2
			}
			if n := strings.Count(string(read(t, asked)), "snapshot\n"); n != passes {
				t.Errorf("read the cluster %d times, not once a pass: %d", n, passes)
			}
			for _, want := range []string{
				"p1 -c proxyc -- /usr/local/bin/proxyc status --ignore-findings --status-socket /run/proxyc/status.sock",
				"p2 -c proxyc -- /usr/local/bin/proxyc prove -c /var/lib/kube-proxy/config.conf --hostname-override n2 -s - ir kernel",
			} {
				if calls := string(read(t, asked)); !strings.Contains(calls, want) {
					t.Errorf("%q was not requested, but:\n%s", want, calls)
				}
			}
		})
	}
}
