package review_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
)

// growths are inputs with n parts of one kind that a user who can write Services can make large.
var growths = []struct {
	name string
	make func(n int) string
}{
	{"source ranges", func(n int) string {
		return loadBalancerYAML("web", 1, "ranges: "+list(n, func(i int) string { return fmt.Sprintf("20.%d.%d.0/24", i/256, i%256) })) +
			reviewtest.SliceYAML("web", "{port: 8080, name: ''}")
	}},
	{"ports of a Service", func(n int) string {
		ports := list(n, func(i int) string { return fmt.Sprintf("{name: p%d, port: %d, nodePort: %d}", i, 1000+i, 20000+i) })
		return reviewtest.ServiceYAML("web", 1, "type: NodePort, ports: "+ports) + reviewtest.SliceYAML("web", strings.Trim(ports, "[]"))
	}},
	{"Services that claim one address", func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(reviewtest.ServiceYAML(fmt.Sprintf("s%d", n-i), i+1, "ports: [{port: 80}], externalIPs: [198.18.0.1]"))
		}
		return b.String()
	}},
	{"external IPs of a Service", func(n int) string {
		return reviewtest.ServiceYAML("web", 1, "ports: [{port: 80}], externalIPs: "+list(n, func(i int) string { return fmt.Sprintf("198.18.%d.%d", i/250, 1+i%250) }))
	}},
}

func list(n int, part func(i int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = part(i)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func loadBalancerYAML(name string, i int, ranges string) string {
	return reviewtest.ServiceYAML(name, i, "type: LoadBalancer, ports: [{port: 80}], loadBalancerSource"+strings.Replace(ranges, "r", "R", 1)+
		"}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}")
}

// Twice the input takes about twice the steps in every mode. A program built with statement
// counters measures the steps.
func TestGrowth(t *testing.T) {
	applytest.Long(t) // it builds a program
	dir := t.TempDir()
	program := counting(t, dir)
	const node = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n---\n"
	for _, g := range growths {
		for _, mode := range ir.Modes() {
			t.Run(g.name+"/"+string(mode), func(t *testing.T) {
				steps := func(n int) int {
					snapshot := filepath.Join(dir, "cluster.yaml")
					if err := os.WriteFile(snapshot, []byte(node+g.make(n)), 0o644); err != nil {
						t.Fatal(err)
					}
					return countSteps(t, program, "compile", "-s", snapshot, "--hostname-override", "node1", "--mode", string(mode))
				}
				const n = 1500
				none, once, twice := steps(0), steps(n), steps(2*n)
				if grown := float64(twice-none) / float64(once-none); grown > 2.4 {
					t.Errorf("%d take %d steps, %d take %d: %.1f times as many, want about twice", n, once-none, 2*n, twice-none, grown)
				}
			})
		}
	}
	// Each of a Service's source ranges is a class of a proof, and none goes through all of them.
	for _, mode := range []ir.Mode{ir.ModeNFTables, ir.ModeIPTables, ir.ModeIPVS} {
		t.Run("prove/source ranges/"+string(mode), func(t *testing.T) {
			steps := func(n int) int {
				snapshot := filepath.Join(dir, "ranges.yaml")
				if err := os.WriteFile(snapshot, []byte(node+growths[0].make(n)), 0o644); err != nil {
					t.Fatal(err)
				}
				return countSteps(t, program, "prove", "-s", snapshot, "--hostname-override", "node1", "--mode", string(mode), "ir", "mode:"+string(mode))
			}
			const n = 400
			once, twice, fourfold := steps(n), steps(2*n), steps(4*n)
			if grown := float64(fourfold-twice) / float64(twice-once); grown > 2.4 {
				t.Errorf("%d take %d steps, %d take %d, %d take %d: the second doubling adds %.1f times as many as the first, want about twice", n, once, 2*n, twice, 4*n, fourfold, grown)
			}
		})
	}
	// A proof's classes are those of each Service, and each costs what it meets.
	for _, mode := range ir.Modes() {
		t.Run("prove/"+string(mode), func(t *testing.T) {
			steps := func(n int) int {
				snapshot := filepath.Join(dir, "mixed.yaml")
				var text bytes.Buffer
				if err := cluster.WriteList(&text, cluster.Cluster{Services: n, Endpoints: 5}.Objects()); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(snapshot, text.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return countSteps(t, program, "prove", "-s", snapshot, "--hostname-override", "node1", "--mode", string(mode), "ir", "mode:"+string(mode))
			}
			const n = 200
			once, twice, fourfold := steps(n), steps(2*n), steps(4*n)
			if grown := float64(fourfold-twice) / float64(twice-once); grown > 2.3 {
				t.Errorf("%d take %d steps, %d take %d, %d take %d: the second doubling adds %.1f times as many as the first, want about twice", n, once, 2*n, twice, 4*n, fourfold, grown)
			}
		})
	}
}

// To compare a Service of which one endpoint moved costs as much as it has endpoints, be they all on the
// node and masqueraded for themselves.
func TestDiffGrowth(t *testing.T) {
	applytest.Long(t) // it builds a program
	dir := t.TempDir()
	program := counting(t, dir)
	write := func(name, last string, n int) string {
		file := filepath.Join(dir, name)
		text := "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}}\n---\n" +
			reviewtest.ServiceYAML("web", 1, "ports: [{port: 80, name: a}, {port: 81, name: b}]") +
			strings.Replace(reviewtest.SliceYAML("web", "{port: 8080, name: a}, {port: 8081, name: b}"), "{addresses: [10.244.1.1]}, {addresses: [10.244.1.2]}",
				fmt.Sprintf("{addresses: [%s], nodeName: node1}, %s", last, strings.Trim(list(n-1, func(i int) string {
					return fmt.Sprintf("{addresses: [10.244.%d.%d], nodeName: node1}", i/100, 2*(i%100))
				}), "[]")), 1)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, mode := range ir.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			steps := func(n int) int {
				return countSteps(t, program, "diff", "-s", write("was.yaml", "10.245.0.1", n), "-S", write("is.yaml", "10.245.0.3", n),
					"--hostname-override", "node1", "--mode", string(mode))
			}
			const n = 200
			once, twice, fourfold := steps(n), steps(2*n), steps(4*n)
			if grown := float64(fourfold-twice) / float64(twice-once); grown > 2.3 {
				t.Errorf("%d endpoints take %d steps, %d take %d, %d take %d: the second doubling adds %.1f times as many as the first, want about twice", n, once, 2*n, twice, 4*n, fourfold, grown)
			}
		})
	}
}

// counting builds a program that counts the statements that run.
func counting(t *testing.T, dir string) (program string) {
	t.Helper()
	program = filepath.Join(dir, "proxyc")
	build := exec.Command("go", "build", "-o", program, "-cover", "-covermode=count", "-coverpkg=github.com/proxyc/proxyc/...", "github.com/proxyc/proxyc/cmd/proxyc")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// countSteps runs a program that counts, and returns how many statements ran.
func countSteps(t *testing.T, program string, args ...string) (steps int) {
	t.Helper()
	dir := t.TempDir()
	run := exec.Command(program, args...)
	run.Env = append(os.Environ(), "GOCOVERDIR="+dir)
	if out, err := run.CombinedOutput(); run.ProcessState == nil || run.ProcessState.ExitCode() > 1 && !strings.Contains(string(out), "error: ") {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	text := filepath.Join(dir, "counts")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+text).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // FILE:FROM,TO STATEMENTS COUNT
		if len(fields) != 3 {
			continue
		}
		statements, _ := strconv.Atoi(fields[1])
		count, _ := strconv.Atoi(fields[2])
		steps += statements * count
	}
	if steps == 0 {
		t.Fatal("nothing was counted")
	}
	return steps
}
