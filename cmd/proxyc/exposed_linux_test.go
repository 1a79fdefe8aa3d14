package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// When the rules go that keep other machines from what listens on localhost, while the
// kernel routes such addresses for node ports there, somebody is told how to end that.
func TestLocalhostExposed(t *testing.T) {
	w := newWatched(t, "iptables-nft")
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := w.ns.Command(t.Context(), "proxyc", args...)
		var out, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &stderr
		if _, err := w.ns.Run(cmd); err != nil {
			t.Fatalf("%s: %v\n%s%s", args, err, &out, &stderr)
		}
		return stderr.String()
	}
	writeDemo(t, dir)
	apply := func(mode string) string {
		return run(slices.Concat([]string{"apply", "-c", dir + "/config.yaml", "-s", dir + "/cluster.yaml", "--hostname-override", "node1", "--mode", mode})...)
	}
	const warning = "warning: net.ipv4.conf.all.route_localnet is 1 and the rules that guarded localhost are gone"
	for name, leave := range map[string]func() string{"another mode": func() string { return apply("nftables") }, "cleanup": func() string { return run("cleanup") }} {
		if said := apply("iptables"); strings.Contains(said, warning) {
			t.Errorf("mode iptables: %s", said)
		}
		if said := leave(); !strings.Contains(said, warning) {
			t.Errorf("%s: %q is not told in %q", name, warning, said)
		}
		if said := run("cleanup"); strings.Contains(said, warning) {
			t.Errorf("nothing went, and yet: %s", said)
		}
	}
}

// writeDemo writes the demo's files into a directory, with settings that a network
// namespace can have: the size of the kernel's table of connections is the machine's.
func writeDemo(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("proxyc", "demo", "--write", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := filepath.Join(dir, "config.yaml")
	config, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, append(config, "conntrack: {maxPerCore: 0, min: 0}\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
