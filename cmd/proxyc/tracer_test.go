package main

import (
	"bytes"
	"strings"
	"testing"
)

// With --live, the node has the addresses of the machine's interfaces, and sends and receives
// packets on them.
func TestTraceLive(t *testing.T) {
	for _, test := range []struct {
		from, to string
		args     []string
		want     string
	}{
		{"198.51.100.200", "198.51.100.11:30080", []string{"--live"}, "198.51.100.200@eth1 -> 198.51.100.11:30080/tcp => rejected"},
		{"node", "198.51.100.200:30080", []string{"--live"}, "198.51.100.11 (the node) -> 198.51.100.200:30080/tcp => not proxied"},
		{"10.0.0.1", "192.0.2.13:30080", []string{"--live"}, "10.0.0.1@eth0 -> 192.0.2.13:30080/tcp => not proxied"},
		{"10.0.0.1", "192.0.2.13:30080", []string{"--live", "--node-address", "192.0.2.13@eth2"}, "10.0.0.1@eth0 -> 192.0.2.13:30080/tcp => rejected"},
		{"10.0.0.1", "192.0.2.13:30080", nil, "10.0.0.1@eth0 -> 192.0.2.13:30080/tcp => not known offline"},
	} {
		files := memFiles{"config": []byte("{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration}"), "cluster": []byte(
			`{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: a, name: b}, spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}}
`)}
		var out bytes.Buffer
		e := testEnv(t, files, append([]string{"trace", "-c", "config", "-s", "cluster", "--from", test.from, "--to", test.to}, test.args...)...)
		e.stdout = &out
		code := run(e)
		// Hindrances may follow.
		way, rest, _ := strings.Cut(out.String(), "\n")
		_, end, _ := strings.Cut(rest, "\n  => ")
		end, _, _ = strings.Cut(end, "\n")
		if got := way + " => " + end; got != test.want || code != exitDone {
			t.Errorf("%s -> %s %v: exit code %d\n got %s\nwant %s", test.from, test.to, test.args, code, got, test.want)
		}
	}
}
