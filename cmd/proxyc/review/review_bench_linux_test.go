package review_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/ir"
)

// BenchmarkReview runs what a review of 10,000 Services of all kinds with five
// endpoints takes, each as a process of its own that also reads the cluster, as JSON:
// time, time of the processors, and peak memory.
func BenchmarkReview(b *testing.B) {
	const services = 10_000
	dir := b.TempDir()
	program := filepath.Join(dir, "proxyc")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/proxyc/proxyc/cmd/proxyc").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	write := func(name string, text []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			b.Fatal(err)
		}
		return file
	}
	list := func(endpoints int) []byte {
		var text bytes.Buffer
		if err := cluster.WriteList(&text, cluster.Cluster{Services: services, Endpoints: endpoints}.Objects()); err != nil {
			b.Fatal(err)
		}
		return text.Bytes()
	}
	snapshot, less := write("cluster.json", list(5)), write("less.json", list(4))
	config := func(pods string) string {
		return "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: " + pods + "\n"
	}
	usual, other := write("config.yaml", []byte(config("10.128.0.0/9"))), write("other.yaml", []byte(config("10.0.0.0/8")))
	run := func(name string, mode ir.Mode, args ...string) {
		b.Run(strings.ReplaceAll(name, " ", "-")+"/mode="+string(mode), func(b *testing.B) {
			args := append(args, "-c", usual, "-s", snapshot, "--hostname-override", "node1", "--mode", string(mode))
			var processors time.Duration
			var peak int64
			for b.Loop() {
				cmd := exec.Command(program, args...)
				var bad *exec.ExitError
				if out, err := cmd.Output(); errors.As(err, &bad) && bad.ExitCode() != 1 || len(out) == 0 {
					b.Fatalf("%v: %v", args, err)
				}
				processors += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
				peak = max(peak, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
			}
			b.ReportMetric(processors.Seconds()/float64(b.N), "cpu-s/op")
			b.ReportMetric(float64(peak)/1024, "peak-MB")
		})
	}
	run("compile", ir.ModeNFTables, "compile", "-o", "ir") // what all others do first
	for _, mode := range ir.Modes() {
		run("prove", mode, "prove", "ir", fmt.Sprintf("mode:%s", mode))
	}
	for _, mode := range []ir.Mode{ir.ModeNFTables, ir.ModeIPTables, ir.ModeIPVS} {
		run("diff an endpoint of each", mode, "diff", "-S", less)
		run("diff clusterCIDR", mode, "diff", "-C", other)
	}
	run("diff to iptables", ir.ModeNFTables, "diff", "--new-mode", "iptables")
	run("lint", ir.ModeNFTables, "lint")
}
