package growth

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
)

// config syncs immediately (a minSyncPeriod of 0 means 1 s), and keeps the settings of the
// machine.
const config = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.128.0.0/9
enableProfiling: true
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 1ns}
`

// configOf returns the configuration of a mode; "" for nftables.
func configOf(mode string) []byte {
	mode = cmp.Or(mode, "nftables")
	return []byte(strings.NewReplacer("mode: nftables", "mode: "+mode, "nftables: {", mode+": {").Replace(config))
}

// daemon is a running `proxyc watch`.
type daemon struct {
	*kube.Proxy
	gen    *generation
	before uint32 // the generation at the start
	began  time.Time
}

// start starts a daemon in a namespace.
func (r *runner) start(ns *applytest.Namespace, source ...string) (*daemon, error) {
	file := filepath.Join(r.Dir, "config.yaml")
	if err := os.WriteFile(file, configOf(r.mode), 0o600); err != nil {
		return nil, err
	}
	gen, err := openGeneration(ns)
	if err != nil {
		return nil, err
	}
	d := &daemon{gen: gen}
	if d.before, err = gen.now(); err != nil {
		return nil, errors.Join(err, gen.Close())
	}
	d.began = time.Now()
	d.Proxy, err = kube.StartProxy(ns, r.Dir, "proxyc", r.binary, append([]string{"watch", "--config", file, "--hostname-override", "node1"}, source...)...)
	if err != nil {
		return nil, errors.Join(err, gen.Close())
	}
	return d, nil
}

func (d *daemon) stop() {
	d.gen.Close()
	d.Stop() // how it ends is not measured
}

// metricsServer is kube-proxy's default address.
const metricsServer = "http://127.0.0.1:10249"

// get sends a request to a proxy's metrics server.
func get(ctx context.Context, p *kube.Proxy, path string) (string, error) {
	code, body, err := p.Get(ctx, metricsServer+path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: code %d", path, code)
	}
	return body, err
}

// synced waits until the daemon has nothing to do.
func (d *daemon) synced(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return kube.Until(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		var st struct{ Synced bool }
		data, err := get(ctx, d.Proxy, "/proxyc/status")
		if err == nil {
			err = json.Unmarshal([]byte(data), &st)
		}
		if err == nil && !st.Synced {
			err = errors.New("the daemon has something to do")
		}
		return err
	})
}

// memory is in bytes: resident once that no longer changes, the peak, and the Go heap after a
// collection.
type memory struct {
	Resident float64 `json:"resident"`
	Peak     float64 `json:"peak"`
	Live     float64 `json:"live"`
}

// quiet is how long a daemon's memory must have stayed the same.
const quiet = 3 * time.Second

// settled waits until a process has returned the memory of its start. It sets the resident memory
// and the peak.
func (m *memory) settled(pid int) error {
	now := 0.0
	for before := -1.0; math.Abs(now-before) > now/100; time.Sleep(quiet) {
		before = now
		bytes, err := sample.Memory(pid, sample.Resident)
		if err != nil {
			return err
		}
		now = float64(bytes)
	}
	peak, err := sample.Memory(pid, sample.Peak)
	m.Resident, m.Peak = now, float64(peak)
	return err
}

func (d *daemon) memory(ctx context.Context) (m memory, err error) {
	if err := m.settled(d.Pid()); err != nil {
		return m, err
	}
	if _, err := get(ctx, d.Proxy, "/debug/pprof/heap?gc=1"); err != nil {
		return m, err
	}
	text, err := get(ctx, d.Proxy, "/metrics")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "go_gc_heap_live_bytes "); ok {
			m.Live, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
			return m, err
		}
	}
	return m, errors.New("the metrics have no go_gc_heap_live_bytes")
}

// generation reads the generation of a namespace's nf_tables.
type generation struct{ *netlink.Conn }

func openGeneration(ns *applytest.Namespace) (*generation, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	return &generation{c}, err
}

func (g *generation) now() (uint32, error) {
	msgs, err := g.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{0, 0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	const nfgenmsg = 4
	if len(msgs) == 0 || len(msgs[0].Data) < nfgenmsg {
		return 0, errors.New("nf_tables do not tell their generation")
	}
	attrs, err := netlink.NewAttributeDecoder(msgs[0].Data[nfgenmsg:])
	if err != nil {
		return 0, err
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			return attrs.Uint32(), attrs.Err()
		}
	}
	return 0, errors.New("nf_tables do not tell their generation")
}

// after waits for a generation other than before.
func (g *generation) after(ctx context.Context, before uint32) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for ctx.Err() == nil {
		now, err := g.now()
		if err != nil || now != before {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return fmt.Errorf("waiting for the kernel: %w", ctx.Err())
}
