package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// checks serves the health check node ports of both families.
type checks struct {
	ir.PerFamily[*serve.HealthChecks]
}

// newChecks returns checks that report failures to faults.
func newChecks(h *serve.Health, faults *faults, events *watch.Events, log *slog.Logger, hosts []string) (c checks) {
	for _, f := range ir.Families() {
		failed := func(service ir.Name, port uint16, err error) {
			faults.setDown("healthCheckNodePort of Service "+service.String(), fmt.Sprintf("port %d (%s)", port, f), err)
			if err == nil {
				log.Info("healthCheckNodePort serves or is no longer needed", "service", service.String(), "port", port, "family", f.String())
				return
			}
			log.Error("healthCheckNodePort does not serve, retrying", "service", service.String(), "port", port, "family", f.String(), "err", err)
			events.Send(watch.Event{Service: service, Warning: true, Reason: "FailedToStartServiceHealthcheck", Action: "Listen",
				Note: fmt.Sprintf("healthCheckNodePort %d does not answer: %v", port, err)})
		}
		*c.At(f) = &serve.HealthChecks{Family: f, Health: h, Log: log, Hosts: hosts, Failed: failed}
	}
	return c
}

// sync applies the changes of a sync.
func (c checks) sync(s *reconcile.Sync) {
	var refused []ir.Name
	for _, r := range s.Done.Refused {
		refused = append(refused, r.Service)
	}
	for f, p := range s.Work.Programs.All() {
		c.Of(f).SetRefused(refused)
		if s.Kind != reconcile.Full {
			changed := make(map[ir.Name]*ir.HealthCheck, len(s.Work.Changes.Of(f)))
			for _, one := range s.Work.Changes.Of(f) {
				changed[one.Name] = nil
				if one.New != nil {
					changed[one.Name] = one.New.Health
				}
			}
			c.Of(f).Change(changed)
			continue
		}
		wanted := map[ir.Name]ir.HealthCheck{}
		for j := range p.Services {
			if s := &p.Services[j]; s.Health != nil {
				wanted[s.Name] = *s.Health
			}
		}
		addrs := append([]netip.Addr{p.Family.Localhost()}, p.Node.Addrs...)
		c.Of(f).Sync(serve.ListenAddrs(p.Family, p.Node.NodePorts, addrs), wanted)
	}
}

// run serves until ctx ends, and retries failed ports.
func (c checks) run(ctx context.Context) error {
	var both sync.WaitGroup
	for _, of := range c.All() {
		both.Go(func() { of.Run(ctx, nil) })
	}
	both.Wait()
	return nil
}

func (c checks) close() {
	for _, of := range c.All() {
		of.Close()
	}
}
