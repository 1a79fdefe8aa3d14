package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// cluster is what a life of the daemon knows of the cluster: the next one goes on with it,
// whether or not anything can be heard by then.
type cluster struct {
	node    string // whose daemon it is; of another one all is asked for anew
	store   *watch.Store
	whole   bool           // all that there was at first is in the Store
	state   *serve.Node    // of the API server's Node; nil: not known, or gone
	contact *watch.Contact // nil without an API server
}

// goOn begins with what the lives before knew.
func (d *daemon) goOn() {
	if d.cluster.node != d.nodeName {
		d.cluster = cluster{node: d.nodeName, store: watch.NewStore(time.Now)}
	}
	d.store = d.cluster.store
	d.store.Anew()
}

// previous is the dataplane of a life of the daemon before. It stays open until the
// one after it has its rules in force: a process that carries connections does
// so until nothing is led to it any longer.
type previous struct {
	apply.Dataplane // nil: there is none
	mode            ir.Mode
}

// leave closes the dataplane of a life that ends, or leaves it to the next one.
// If this one has not come as far as to write rules, that is the one before.
func (d *daemon) leave(ctx context.Context, dataplane apply.Dataplane) {
	_, another := errors.AsType[*configChanged](context.Cause(ctx))
	if another && d.previous.Dataplane == nil {
		d.previous = previous{dataplane, d.cfg.ProxyMode()}
		return
	}
	d.close(dataplane)
	if !another {
		d.localhost.Close() // before another process may write, and listen
		d.closeBefore()
	}
}

// closeBefore closes what a life before has left.
func (d *daemon) closeBefore() {
	if d.previous.Dataplane != nil {
		d.close(d.previous.Dataplane)
		d.previous = previous{}
	}
}

func (d *daemon) close(dataplane apply.Dataplane) { d.process.close(dataplane, d.log) }

func (p *process) close(dataplane apply.Dataplane, log *logger) {
	if err := dataplane.Close(); err != nil {
		log.Error("closing the rules", "err", err)
	}
	if dr, ok := dataplane.(apply.Drainer); ok {
		p.draining = slices.DeleteFunc(p.draining, func(d apply.Drainer) bool { return d.Carried() == 0 })
		p.draining = append(p.draining, dr)
	}
}

// drain lets connections that the process carries end, when all else has.
func (p *process) drain(log *logger) {
	if p.stuck {
		return
	}
	if p.previous.Dataplane != nil { // the last life did not even begin
		p.close(p.previous.Dataplane, log)
	}
	draining := append(p.draining, &p.localhost)
	carried := 0
	for _, d := range draining {
		carried += d.Carried()
	}
	if carried > 0 {
		log.Info("waiting for connections to end", "connections", carried, "at most", p.DrainTimeout.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.DrainTimeout)
	defer cancel()
	cut := 0
	for _, d := range draining {
		cut += d.Drain(ctx)
	}
	if cut > 0 {
		log.Warn("connections were cut off", "connections", cut)
	}
	log.info.Flush()
}

// lastWork is how long work that is under way may go on after a signal, in a
// mode whose rules stay.
const lastWork = 800 * time.Millisecond

// lastWorkOf is lastWork, or longer in a mode whose rules have to go.
func lastWorkOf(mode ir.Mode) time.Duration {
	if dataplaneOf(mode).process {
		return 10 * time.Second
	}
	return lastWork
}
