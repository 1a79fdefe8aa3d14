package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/serve"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// input is the source of a session's rules: objects of an API server or of files, which fill the
// Store, and the follower that compiles them.
type input struct {
	*session
	node     string
	started  time.Time // the daemon
	store    *watch.Store
	follower *follower

	apiServer
	again    chan struct{}                  // receives a token to read the snapshot again
	snapshot atomic.Pointer[[]*status.File] // current files
	first    first
}

// apiServer is the part of an input that only exists with an API server.
type apiServer struct {
	events    *watch.Events        // nil without an API server
	contact   *watch.Contact       // nil without an API server
	condition *watch.NodeCondition // nil if disabled
	inForce   atomic.Bool          // rules for the server's objects were applied once
}

// first is the state of the input at the start of a session.
type first struct {
	objects <-chan struct{} // closed when the Store contains all initial objects
	// readable is closed when the input is known to be readable, or receives the error. An API server
	// is waited for.
	readable <-chan error
}

func newInput(s *session, node string) *input {
	log := s.log.Logger
	in := &input{session: s, node: node, started: time.Now(), store: watch.NewStore(time.Now), again: make(chan struct{}, 1)}
	if len(s.Snapshot) == 0 {
		in.events = watch.NewEvents(in.node, log, time.Now)
		in.contact = watch.NewContact(log, time.Now)
		in.condition = in.newCondition()
	}
	in.follower = newFollower(s.config.Config, in.store, compiler.Facts{NodeName: in.node, Files: len(s.Snapshot) > 0, TCPBeLiberal: host.Liberal()}, log, in.events.Send)
	in.follower.interfaces = host.Interfaces
	in.follower.retrying = in.faults.retrying
	return in
}

// start starts to fill the Store, in goroutines of running, until ctx ends.
func (in *input) start(ctx context.Context, running *sync.WaitGroup) error {
	objects := make(chan struct{})
	whole := sync.OnceFunc(func() { close(objects) })
	in.first.objects = objects
	if len(in.Snapshot) > 0 {
		in.readFiles(ctx, running, whole)
		return nil
	}
	return in.connect(ctx, running, whole)
}

// connect watches an API server.
func (in *input) connect(ctx context.Context, running *sync.WaitGroup, whole func()) error {
	p := in.Options
	api := &watch.API{NodeName: in.node, Store: in.store, Log: in.log.Logger, NodeState: in.nodeState,
		Events: in.events, Contact: in.contact, Condition: in.condition}
	if err := api.Connect(in.config.Config.ClientConnection, p.Master, "proxyc/"+p.Version); err != nil {
		return err
	}
	readable := make(chan error)
	close(readable)
	in.first.readable = readable
	running.Go(func() { api.Run(ctx, whole) })
	return nil
}

// readFiles watches files.
func (in *input) readFiles(ctx context.Context, running *sync.WaitGroup, whole func()) {
	p := in.Options
	readable := make(chan error, 1)
	in.first.readable = readable
	var seen []*status.File // files being read; for one goroutine
	files := &watch.Files{Paths: p.Snapshot, Store: in.store, Log: in.log.Logger, Limit: p.SnapshotLimit, AllowEmpty: p.AllowEmpty, NodeName: in.node, Reread: in.again, Every: p.Poll,
		Begin: func() { // before reading, so that a change meanwhile counts as later
			seen = nil
			for _, path := range p.Snapshot {
				seen = append(seen, statFile(p.Files, path))
			}
		},
		Report: func(l diag.List, invalid []*snapshot.Invalid) {
			for _, f := range l {
				logDiagnostic(in.log.Logger, f)
			}
			in.follower.findings.setRead(l, invalid)
		}}
	begun := false
	running.Go(func() {
		files.Run(ctx, func(err error) {
			why := ""
			if err == nil {
				files := seen
				in.snapshot.Store(&files)
				whole()
			} else {
				why = err.Error()
			}
			was := in.faults.setInvalid(strings.Join(p.Snapshot, ", "), why, watch.Unreadable(err))
			switch {
			case !begun:
				begun = true
				if err != nil {
					readable <- err
				}
				close(readable)
			case err != nil: // the current snapshot is kept
				in.log.Error("the snapshot is invalid: the current objects are kept", "err", err)
			case was != "":
				in.log.Info("the snapshot is valid again")
			}
		})
	})
	in.nodeState(&watch.NodeState{}) // without an API server the node counts as eligible
}

// nodeState stores the Node's eligibility for traffic from load balancers; nil if the Node is
// deleted.
func (in *input) nodeState(n *watch.NodeState) {
	state := (*serve.Node)(nil)
	if n != nil {
		state = &serve.Node{Terminating: n.Terminating, Taints: n.Taints}
	}
	in.health.SetNode(state)
}

// missing describes what is missing before rules can be compiled from objects; "" for nothing.
func (in *input) missing() string {
	select {
	case <-in.first.objects:
		return in.missingPodRanges()
	default:
		return in.waiting()
	}
}

// waiting describes what is missing before the Store contains all initial objects.
func (in *input) waiting() string {
	if in.contact == nil {
		return "waiting for the initial objects"
	}
	return "waiting for the initial objects from API server " + in.contact.Server()
}

// wait waits for the complete input, and until the Node contains what detectLocalMode requires, as
// kube-proxy does (DET-2): rules that cannot identify pods must not replace those that can. It returns
// false if ctx ends before.
func (in *input) wait(ctx context.Context) bool {
	in.health.SetNotReady(in.waiting())
	select {
	case <-ctx.Done():
	case <-in.first.objects:
	}
	for reported := false; ctx.Err() == nil; reported = true { // select chooses randomly if both are ready
		why := in.missingPodRanges()
		if why == "" {
			return true
		}
		if !reported {
			in.log.Warn(why + "; the rules are unchanged")
			in.health.SetNotReady(why)
		}
		select {
		case <-ctx.Done():
		case <-in.store.Changed():
		}
	}
	return false
}

// missingPodRanges describes what is missing to identify pods; "" for nothing.
func (in *input) missingPodRanges() (why string) {
	in.store.View(func(snap *snapshot.Snapshot) {
		if missing := MissingPodRanges(in.config.Config, snap, in.node); missing != "" {
			why = "waiting for " + missing
		}
	})
	return why
}

// MissingPodRanges describes what detectLocalMode requires of a Node but does not find, so that pods
// cannot be identified (DET-2); "" for nothing.
func MissingPodRanges(cfg *config.Config, snap *snapshot.Snapshot, nodeName string) string {
	if cfg.DetectLocalMode != config.DetectNodeCIDR || !cfg.ProxyMode().Capabilities().Has(ir.Masquerades) || len(podCIDRs(snap, nodeName)) > 0 {
		return ""
	}
	return "pod ranges of Node " + nodeName + ", which detectLocalMode NodeCIDR requires: spec.podCIDRs is empty or the Node does not exist"
}

// checkNode checks the configuration against the Node's address families, if known (CFG-14,
// configured addresses need the node's family; CFG-15, warnings about single-family settings).
func (in *input) checkNode() error {
	interfaces, err := host.Interfaces()
	if err != nil {
		return err
	}
	var findings diag.List
	in.store.View(func(snap *snapshot.Snapshot) {
		if of, ok := compiler.NodeFamilies(in.config.Config, snap.Node(in.node), interfaces); ok {
			findings = in.config.CheckNode(of)
		}
	})
	for _, f := range findings {
		logDiagnostic(in.log.Logger, f)
	}
	if findings.HasErrors() {
		return fmt.Errorf("the configuration does not match Node %s: see the log", in.node)
	}
	return nil
}

// outage describes a loss of contact with the API server that is longer than UnreadyAfter; ""
// otherwise.
func (in *input) outage() string {
	if in.contact == nil {
		return ""
	}
	outage := in.contact.Outage()
	after := in.UnreadyAfter
	if ago := time.Since(outage.Lost); !outage.Lost.IsZero() && after > 0 && ago >= after {
		return fmt.Sprintf("no contact with API server %s for %s: %s: %s", in.contact.Server(), ago.Round(time.Second), outage.Resource, outage.Cause)
	}
	return ""
}

// contacts returns the contact with the API server, for the metrics.
func (in *input) contacts() []serve.Contact {
	var all []serve.Contact
	for _, r := range in.contact.Resources() {
		if r.Unavailable != "" {
			continue // no events are expected
		}
		all = append(all, serve.Contact{Resource: r.Resource, At: r.Last, Lost: !r.Lost.IsZero()})
	}
	return all
}

// reportPending adds the files that were read to a Status, and then the changes that wait for a
// sync. In this order, the changes of a file are not missed.
func (in *input) reportPending(st *status.Status) {
	if files := in.snapshot.Load(); files != nil {
		st.Snapshot = *files
	}
	st.Pending = in.store.Pending()
}

// report adds the rest of the input to a Status. Findings are included before the sync of their
// objects.
func (in *input) report(st *status.Status) {
	in.store.View(func(s *snapshot.Snapshot) {
		st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes = s.Count()
	})
	if in.contact != nil {
		st.APIServer = newAPIServer(in.contact)
	}
	in.follower.findings.report(st)
}

func newAPIServer(contact *watch.Contact) *status.APIServer {
	api := &status.APIServer{Server: contact.Server(), Resources: contact.Resources()}
	if outage := contact.Outage(); !outage.Lost.IsZero() {
		api.Lost, api.Cause, api.Fix = outage.Lost, outage.Resource+": "+outage.Cause, outage.Fix
	}
	return api
}
