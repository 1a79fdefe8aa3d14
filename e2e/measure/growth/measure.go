package growth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/apply/nftables"
	"github.com/proxyc/proxyc/e2e/measure/sample"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// measure adds a row for a size to a report.
func (r *runner) measure(ctx context.Context, c cluster.Cluster, to *report) error {
	out := &row{Services: c.Services, Endpoints: c.Endpoints}
	to.Rows = append(to.Rows, out)
	file := filepath.Join(r.Dir, "cluster.json")
	var list bytes.Buffer
	if err := errors.Join(cluster.WriteList(&list, c.Objects()), os.WriteFile(file, list.Bytes(), 0o600)); err != nil {
		return err
	}
	list = bytes.Buffer{}
	err := inNamespace(func(ns *applytest.Namespace) (err error) {
		d, err := r.start(ns, "--snapshot", file)
		if err != nil {
			return err
		}
		defer d.stop()
		out.Snapshot, err = d.started(ctx, ns, c)
		return err
	})
	if err != nil {
		return err
	}
	return inNamespace(func(ns *applytest.Namespace) error {
		api, err := serve(ns, c)
		if err != nil {
			return err
		}
		defer api.Close()
		if out.Client, err = r.clientAlone(ctx, ns, api.url); err != nil {
			return err
		}
		d, err := r.start(ns, "--master", api.url)
		if err != nil {
			return err
		}
		defer d.stop()
		if out.API, err = d.started(ctx, ns, c); err != nil {
			return err
		}
		return r.change(ctx, c, d, api, out)
	})
}

func inNamespace(do func(*applytest.Namespace) error) error {
	ns, err := applytest.NewNamespace("node")
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns)
}

// change makes all kinds of changes, each several times.
func (r *runner) change(ctx context.Context, c cluster.Cluster, d *daemon, api *api, out *row) error {
	one := c.Services/2/20*20 + 1 // a plain one
	slice := c.Slices(one)[0]
	addresses := [2]string{slice.Endpoints[0].Addresses[0], "10.255.255.254"}
	added := c.Services/20*20 + 21
	service, its := c.Service(added), c.Slices(added)[0]
	api.send("endpointslices", "ADDED", its)
	var endpoint, add, remove samples
	for i := range r.rounds {
		slice = slice.DeepCopy() // the previous one may still be in transit
		slice.Endpoints[0].Addresses[0] = addresses[(i+1)%2]
		err := errors.Join(
			d.timed(ctx, &endpoint, func() { api.send("endpointslices", "MODIFIED", slice) }),
			d.timed(ctx, &add, func() { api.send("services", "ADDED", service) }),
			d.timed(ctx, &remove, func() { api.send("services", "DELETED", service) }))
		if err != nil {
			return err
		}
	}
	out.Endpoint, out.Added, out.Removed = endpoint.change(), add.change(), remove.change()
	return nil
}

// samples are the results of one kind of change.
type samples struct {
	took []time.Duration
	cpu  time.Duration
}

func (s *samples) change() change {
	slices.Sort(s.took)
	return change{sample.Quantile(s.took, 0.5).Seconds(), sample.Quantile(s.took, 0.9).Seconds(), s.cpu.Seconds() / float64(len(s.took))}
}

// pause follows each change, so that none waits for another.
const pause = 30 * time.Millisecond

// timed makes a change, and waits until the kernel has it.
func (d *daemon) timed(ctx context.Context, s *samples, do func()) error {
	before, err := d.gen.now()
	if err != nil {
		return err
	}
	cpu, err := sample.CPU(d.Pid())
	if err != nil {
		return err
	}
	began := time.Now()
	do()
	if err := d.gen.after(ctx, before); err != nil {
		return err
	}
	s.took = append(s.took, time.Since(began))
	time.Sleep(pause)
	now, err := sample.CPU(d.Pid())
	s.cpu += now - cpu
	return err
}

// started waits until the kernel has all Services, and returns the costs of that.
func (d *daemon) started(ctx context.Context, ns *applytest.Namespace, c cluster.Cluster) (out start, err error) {
	if err := d.gen.after(ctx, d.before); err != nil {
		return out, errors.Join(err, errors.New(d.Tail()))
	}
	out.Seconds = time.Since(d.began).Seconds()
	cpu, err := sample.CPU(d.Pid())
	if err != nil {
		return out, err
	}
	out.CPUSeconds = cpu.Seconds()
	if err := hasAll(ctx, ns, c); err != nil {
		return out, errors.Join(err, errors.New(d.Tail()))
	}
	if err := d.synced(ctx); err != nil {
		return out, err
	}
	out.memory, err = d.memory(ctx)
	return out, err
}

// hasAll checks that the kernel has all ports of all ClusterIPs.
func hasAll(ctx context.Context, ns *applytest.Namespace, c cluster.Cluster) error {
	t, err := nftables.OpenIn(ns.Fd(), apply.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	tables, err := t.Tables(ctx)
	if err != nil {
		return err
	}
	has := map[netip.AddrPort]bool{}
	for _, s := range tables.IPv4.Sets {
		if s.Name != rules.ServiceIPs.String() {
			continue
		}
		for _, e := range s.Elements {
			has[netip.AddrPortFrom(e.Key.Addr, e.Key.Port)] = true
		}
	}
	for i := range c.Services {
		s := c.Service(i)
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		for _, p := range s.Spec.Ports {
			at := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), uint16(p.Port))
			if !has[at] {
				return fmt.Errorf("the kernel has no %s of Service %s/%s", at, s.Namespace, s.Name)
			}
		}
	}
	return nil
}
