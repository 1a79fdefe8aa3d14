package parse

import (
	"strings"
	"testing"
)

func TestParseServers(t *testing.T) {
	const service = "-A -t 10.96.0.10:80 -s rr\n"
	for _, tt := range []struct{ text, err string }{
		{"", ""},
		{service, ""},
		{service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 1\n", ""},
		{service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 0\n", ""},
		{service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 2\n", "line 2: real server 10.244.1.10:80 must have weight 1, has 2"},
		{service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w -1\n", `line 2: -w must be a number, got "-1"`},
		{service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -g -w 1\n", "line 2: real server 10.244.1.10:80 must be masqueraded (-m)"},
		{service + strings.Repeat("-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 1\n", 2), "line 3: \"-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 1\": the kernel would refuse this"},
		{service + service, "line 2: \"-A -t 10.96.0.10:80 -s rr\": the kernel would refuse this"},
		{"-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m -w 1\n", "the kernel would refuse this"},
		{"-A -f 7 -s rr\n", `line 1: must have -t, -u or --sctp-service, got "-f"`},
		{"-A -t 10.96.0.10:80 -s rr -p long\n", `line 1: -p must be a number, got "long"`},
	} {
		servers, err := ParseServers(tt.text)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%q: got %v, %v, want error %q", tt.text, servers, err, tt.err)
		}
	}
	servers, err := ParseServers(service + "-a -t 10.96.0.10:80 -r 10.244.1.10:80 -m\n-a -t 10.96.0.10:80 -r 10.244.1.11:80 -m -w 0\n")
	if err != nil || len(servers) != 1 || len(servers[0].RealServers) != 1 || servers[0].RealServers[0].Weight != 1 {
		t.Errorf("weights: %v, %+v", err, servers)
	}
}
