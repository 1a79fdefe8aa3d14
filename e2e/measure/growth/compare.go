package growth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/e2e/kube"
)

// syncTimeout is the timeout of a sync.
const syncTimeout = time.Hour

// compare measures kube-proxy and proxyc in a mode, one after the other, each in its own namespace
// with its own API server. According to their metrics, it measures the time until all Services
// are in force, and until the change of an endpoint is.
func (r *runner) compare(ctx context.Context, mode string, c cluster.Cluster) error {
	peer, err := kube.Tool(ctx, kube.KubeProxy)
	if err != nil {
		return err
	}
	for _, program := range []struct {
		name string
		args []string
	}{{"proxyc", []string{r.binary, "watch"}}, {"kube-proxy", []string{peer}}} {
		err := inNamespace(func(ns *applytest.Namespace) error {
			start, changes, err := r.sideOf(ctx, ns, mode, c, program.args)
			if err == nil {
				s := changes.change()
				fmt.Fprintf(r.Out, "%s %s %dx%d: all in force after %.2f s, an endpoint after %.4f s (median of %d, p90 %.4f s)\n",
					program.name, mode, c.Services, c.Endpoints, start.Seconds(), s.Median, len(changes.took), s.P90)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", program.name, err)
		}
	}
	return nil
}

func (r *runner) sideOf(ctx context.Context, ns *applytest.Namespace, mode string, c cluster.Cluster, args []string) (start time.Duration, changes samples, err error) {
	api, err := serve(ns, c)
	if err != nil {
		return 0, changes, err
	}
	defer api.Close()
	file := filepath.Join(r.Dir, "compare.yaml")
	if err := os.WriteFile(file, configOf(mode), 0o600); err != nil {
		return 0, changes, err
	}
	began := time.Now()
	p, err := kube.StartProxy(ns, r.Dir, "compare", args[0], append(args[1:], "--config", file, "--hostname-override", "node1", "--master", api.url)...)
	if err != nil {
		return 0, changes, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, p.Tail())
		}
		p.Kill()
	}()
	at, err := lastSync(ctx, p, began)
	if err != nil {
		return 0, changes, err
	}
	start = at.Sub(began)
	fmt.Fprintf(r.Log, "%s: started in %s\n", args[0], start)
	if mode == "ipvs" {
		if err := ns.Do(func() error { return holdsIPVS(c) }); err != nil {
			return start, changes, err
		}
	}
	one := c.Services/2/20*20 + 1
	slice := c.Slices(one)[0]
	addresses := [2]string{slice.Endpoints[0].Addresses[0], "10.255.255.254"}
	for i := range r.rounds {
		time.Sleep(time.Second) // what follows a sync has ended
		slice = slice.DeepCopy()
		slice.Endpoints[0].Addresses[0] = addresses[(i+1)%2]
		sent := time.Now()
		api.send("endpointslices", "MODIFIED", slice)
		for at := sent; ; { // a sync that had already begun does not count
			if at, err = lastSync(ctx, p, at); err != nil {
				return start, changes, err
			}
			served := true
			if mode == "ipvs" {
				if err := ns.Do(func() (err error) { served, err = servesIPVS(c, one, addresses[(i+1)%2]); return err }); err != nil {
					return start, changes, err
				}
			}
			if served {
				changes.took = append(changes.took, at.Sub(sent))
				break
			}
		}
	}
	return start, changes, nil
}

var lastSyncSeries = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv4"\} (\S+)$`)

// lastSync waits for the end of a sync after a time, and returns the time of that end.
func lastSync(ctx context.Context, p *kube.Proxy, after time.Time) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	var at time.Time
	err := kube.Until(ctx, 500*time.Millisecond, func(ctx context.Context) error { // requests disturb what is measured
		text, err := get(ctx, p, "/metrics")
		if err != nil {
			return err
		}
		if m := lastSyncSeries.FindStringSubmatch(text); m != nil {
			seconds, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return err
			}
			at = time.Unix(0, int64(seconds*1e9))
		}
		if !at.After(after) {
			return errors.New("no sync yet")
		}
		return nil
	})
	return at, err
}

// holdsIPVS returns an error unless ip_vs has all Services of a plain cluster.
func holdsIPVS(c cluster.Cluster) error {
	table, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if err != nil {
		return err
	}
	servers, backends := strings.Count(string(table), "\nTCP "), strings.Count(string(table), "\n  -> ")-1 // the head has one
	if want := c.Services * c.Endpoints; servers != c.Services || backends != want {
		return fmt.Errorf("ip_vs has %d virtual and %d real servers, want %d and %d", servers, backends, c.Services, want)
	}
	return nil
}

// servesIPVS reports whether a Service has an endpoint.
func servesIPVS(c cluster.Cluster, service int, endpoint string) (bool, error) {
	at := fmt.Sprintf("%s:%d", c.Service(service).Spec.ClusterIP, c.Service(service).Spec.Ports[0].Port)
	out, err := exec.Command("ipvsadm", "-Ln", "-t", at).CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("ipvsadm -Ln -t %s: %w\n%s", at, err, out)
	}
	return strings.Contains(string(out), "-> "+endpoint+":"), nil
}
