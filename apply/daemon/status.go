package daemon

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// StatusPath is where the metrics server tells the daemon's status.
const StatusPath = "/proxyc/status"

// IRPath is where the status socket tells the IR in force, as JSON.
const IRPath = "/proxyc/ir"

// KnownPath is where the status socket tells what the IR is made of: Known, as JSON.
const KnownPath = "/proxyc/known"

// Status is what a daemon is doing.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Mode    ir.Mode   `json:"mode"`
	// InsteadOf is the mode that the configuration names, where another was taken, and why.
	InsteadOf       ir.Mode `json:"insteadOf,omitempty"`
	InsteadOfReason string  `json:"insteadOfReason,omitempty"`
	Node            string  `json:"node"`
	// Synced reports whether the kernel holds what is wanted: nothing waits, and the last sync succeeded.
	Synced bool   `json:"synced"`
	Reason string `json:"reason,omitempty"` // why /readyz is not 200
	// Held is whose rules are kept in force while there are no objects to go by: "the boot
	// file boot.json"; "": there are objects, or no such rules.
	Held string `json:"held,omitempty"`
	// Generation counts the syncs that succeeded.
	Generation int     `json:"generation"`
	Pending    int     `json:"pending"` // Services whose changes no sync has taken yet
	Objects    Objects `json:"objects"`
	// APIServer is not there where the source are files.
	APIServer *APIServer `json:"apiServer,omitempty"`
	Config    *File      `json:"config,omitempty"`   // --config, as it is in force
	Snapshot  []*File    `json:"snapshot,omitempty"` // each --snapshot, as it is in force; none while nothing of it is
	BootFile  *File      `json:"bootFile,omitempty"` // --boot-from
	// Rejected are files whose newest version was refused: what was in force before stays.
	Rejected []Rejected `json:"rejected,omitempty"`
	// Retrying is what follows the rules, failed and is tried again.
	Retrying []Retry `json:"retrying,omitempty"`
	// Down are servers, and healthCheckNodePorts, that do not serve: another program
	// holds the address, most often.
	Down     []Down    `json:"down,omitempty"`
	LastSync time.Time `json:"lastSync,omitzero"`
	LastKind string    `json:"lastKind,omitempty"`
	// Operations are those of the last sync.
	Operations  apply.Count `json:"operations"`
	Quarantined []Refused   `json:"quarantined,omitempty"`
	Broken      []Broken    `json:"broken,omitempty"`
	// Unproved are Services whose rules are not shown to do what is wanted (--prove).
	Unproved []Unproved `json:"unproved,omitempty"`
	// Proving is of how many Services that changed nobody knows yet.
	Proving int `json:"proving,omitempty"`
	// Findings are the first of what is wrong or doubtful in objects, of FindingsTotal.
	Findings      []Finding  `json:"findings,omitempty"`
	FindingsTotal int        `json:"findingsTotal,omitempty"`
	LastError     *LastError `json:"lastError,omitempty"` // stays after it is overcome
	LastDrift     *LastDrift `json:"lastDrift,omitempty"`
	// LastChange is the last sync that changed something; LastSync may have come after it.
	LastChange *LastChange `json:"lastChange,omitempty"`
	// KubeProxy is what there was last of kube-proxy's rules; nil: nothing.
	KubeProxy *KubeProxy `json:"kubeProxy,omitempty"`
	// Draining are the backends that serve the connections that they have, and
	// get no new ones, where the kernel has to be asked about these (mode ipvs).
	Draining []apply.Drain `json:"draining,omitempty"`
	// Easing is what an earlier mode left, and connections still need; nil: nothing.
	Easing *Easing `json:"easing,omitempty"`
	// MayDrop and MayDivert are rules of others that may drop packets, or keep them
	// from ours.
	MayDrop   []string `json:"mayDrop,omitempty"`
	MayDivert []string `json:"mayDivert,omitempty"`
}

// Objects counts what is known of the cluster.
type Objects struct {
	Services       int `json:"services"`
	EndpointSlices int `json:"endpointSlices"`
	Nodes          int `json:"nodes"`
}

// APIServer is what is heard of an API server.
type APIServer struct {
	Server string `json:"server"`
	// Lost is since when it cannot be heard; zero: it can.
	Lost      time.Time     `json:"lost,omitzero"`
	Cause     string        `json:"cause,omitempty"` // "services: connection refused"
	Fix       string        `json:"fix,omitempty"`   // of Cause, where it is known
	Resources []watch.Heard `json:"resources"`
}

type File struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified,omitzero"` // zero: it is not there
	Error    string    `json:"error,omitempty"`   // why it could not be written
	Refused  string    `json:"refused,omitempty"` // of the boot file: why nothing of it came in force at the start
}

type Rejected struct {
	Path   string    `json:"path"`
	Since  time.Time `json:"since"` // the first refusal after a version that was taken
	At     time.Time `json:"at"`    // of the newest version's
	Reason string    `json:"reason"`
}

type Retry struct {
	What  string    `json:"what"` // "stale IPv4 UDP flows"
	Since time.Time `json:"since"`
	Error string    `json:"error"` // of the last try
}

// Down is a server that does not serve.
type Down struct {
	Server  string    `json:"server"` // "healthz server"
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason"`
}

type Refused struct {
	Service string `json:"service"`
	Reason  string `json:"reason"`
}

// Unproved is a Service whose rules are not shown to do what is wanted.
type Unproved struct {
	Service string `json:"service"`
	Packet  string `json:"packet"` // for example: flags of proxyc trace; empty: it is not known
	Want    string `json:"want"`   // AnyFate: whether there is any such packet is not known
	Have    string `json:"have"`
}

// AnyFate is what the fate of packets is to be, at least.
const AnyFate = "known"

// Text says what is wrong.
func (u *Unproved) Text() string {
	shown := ""
	if u.Packet != "" {
		shown = "proxyc trace " + u.Packet + ": "
	}
	if u.Want == AnyFate {
		return shown + u.Have
	}
	return fmt.Sprintf("%sis %s, must be %s", shown, u.Have, u.Want)
}

// Broken is an object of whose newest version nothing counts.
type Broken struct {
	Kind   string `json:"kind"`   // "services"
	Object string `json:"object"` // "ns/web"
	Reason string `json:"reason"`
}

type LastError struct {
	At    time.Time `json:"at"`
	Error string    `json:"error"`
}

type LastChange struct {
	At         time.Time   `json:"at"`
	Kind       string      `json:"kind"`
	Operations apply.Count `json:"operations"`
}

// KubeProxy is what a daemon saw of kube-proxy's rules since its own start.
type KubeProxy struct {
	State   KubeProxyState `json:"state"`
	Since   time.Time      `json:"since"`
	Objects []string       `json:"objects"`           // "table ip kube-proxy"
	Process string         `json:"process,omitempty"` // of Maintained rules, where it is visible: "process 4711"
}

// Easing is a change of modes that old connections have not ended: what the earlier
// mode left for them goes when they do.
type Easing struct {
	Since time.Time `json:"since"` // when this daemon began it
	Until time.Time `json:"until"` // when the rest goes with the connections that there are
	Kept  []Busy    `json:"kept"`
}

// state collects the Status.
type state struct {
	mu      sync.Mutex
	now     func() time.Time
	status  Status
	inForce func() ir.Programs // nil: not known yet
	drains  func() []apply.Drain
	plan    plan
	repairs []time.Time // of what others changed, the newest; at most mostRepairs
}

func newState(mode ir.Mode, node string, now func() time.Time) *state {
	return &state{now: now, status: Status{Mode: mode, Node: node}}
}

// setSynced sets whether the kernel holds what is wanted.
func (s *state) setSynced(synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Synced = synced
}

func (s *state) synced(sync *reconcile.Sync) {
	p := newPlan(sync)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = p
	st := &s.status
	s.repaired(sync)
	if sync.Err != nil {
		st.LastError = &LastError{sync.Ended, sync.Err.Error()}
		return
	}
	st.Generation++
	st.LastSync, st.LastKind, st.Operations = sync.Ended, sync.Kind.String(), sync.Done.Operations
	if total(st.Operations) > 0 {
		st.LastChange = &LastChange{st.LastSync, st.LastKind, st.Operations}
	}
	st.Quarantined = nil
	for _, r := range sync.Done.Refused {
		st.Quarantined = append(st.Quarantined, Refused{r.Service.String(), r.Reason.Error()})
	}
}

// setBroken sets which objects of a kind are broken, and why.
func (s *state) setBroken(kind string, why map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(s.status.Broken), func(b Broken) bool { return b.Kind == kind })
	for _, object := range slices.Sorted(maps.Keys(why)) {
		now = append(now, Broken{kind, object, why[object]})
	}
	s.status.Broken = now
}

// setKubeProxy sets what was seen of kube-proxy.
func (s *state) setKubeProxy(k *KubeProxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.KubeProxy = k
}

// kubeProxy returns what was seen of kube-proxy.
func (s *state) kubeProxy() *KubeProxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.KubeProxy
}

// setInForce sets what tells the Programs in force.
func (s *state) setInForce(f func() ir.Programs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inForce = f
}

// setHeld sets whose rules are in force in place of what objects mean; "": nobody's. It
// reports whether that is new.
func (s *state) setHeld(from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.status.Held != from
	s.status.Held, s.status.Synced = from, false
	return changed
}

// setDraining sets what tells the backends that drain; nil: nothing does.
func (s *state) setDraining(f func() []apply.Drain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drains = f
}

// draining returns the backends that drain.
func (s *state) draining() []apply.Drain {
	s.mu.Lock()
	drains := s.drains
	s.mu.Unlock()
	if drains == nil {
		return nil
	}
	return drains()
}

// setEasing sets what is told of a change of modes that goes on; nil: none does.
func (s *state) setEasing(e *Easing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Easing = e
}

// eases reports whether a change of modes goes on.
func (s *state) eases() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.Easing != nil
}

// setSnapshot sets the files of the snapshot that is in force.
func (s *state) setSnapshot(files []*File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Snapshot = files
}

// setRejected sets why the newest version of a file is not what counts; "": it does. It
// reports whether the version before was rejected.
func (s *state) setRejected(path, why string) (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.now()
	since := at
	now := slices.DeleteFunc(slices.Clone(s.status.Rejected), func(k Rejected) bool {
		if k.Path == path {
			since, was = k.Since, true
		}
		return k.Path == path
	})
	if why != "" {
		now = append(now, Rejected{path, since, at, why})
	}
	s.status.Rejected = now
	return was
}

// setRetrying sets why something failed that is tried again; nil: it did not. It
// returns that error, and the one before, as text.
func (s *state) setRetrying(what string, err error) (is, was string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.now()
	now := slices.DeleteFunc(slices.Clone(s.status.Retrying), func(r Retry) bool {
		if r.What == what {
			since, was = r.Since, r.Error
		}
		return r.What == what
	})
	if err != nil {
		is = err.Error()
		now = append(now, Retry{what, since, is})
	}
	s.status.Retrying = now
	return is, was
}

// setDown sets why a server does not serve; nil: it does.
func (s *state) setDown(server, address string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.now()
	now := slices.DeleteFunc(slices.Clone(s.status.Down), func(d Down) bool {
		same := d.Server == server && d.Address == address
		if same {
			since = d.Since
		}
		return same
	})
	if why != nil {
		now = append(now, Down{server, address, since, why.Error()})
	}
	slices.SortFunc(now, func(a, b Down) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Address, b.Address))
	})
	s.status.Down = now
}

// told returns the Status, as far as the state has it.
func (s *state) told(pending int) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Now, st.Pending = s.now(), pending
	if st.LastDrift != nil {
		last := *st.LastDrift
		last.Lately = s.lately()
		st.LastDrift = &last
	}
	st.Synced = st.Synced && pending == 0 && st.Held == ""
	return st
}

// status is all that there is to tell.
func (d *daemon) status() Status {
	st := d.state.told(d.store.Pending())
	st.Synced = st.Synced && !d.flows.Busy() // asked after it: flows follow a sync
	st.Version, st.PID, st.Started = d.Version, os.Getpid(), d.started
	st.Reason = d.health.Ready().Reason
	d.store.View(func(s *snapshot.Snapshot) {
		st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes = s.Count()
	})
	st.Draining = d.state.draining()
	d.proofs.report(&st)
	st.Findings, st.FindingsTotal = d.follower.findings.first(shownFindings)
	if d.contact != nil {
		st.APIServer = &APIServer{Server: d.contact.Server(), Resources: d.contact.Resources()}
		if lost := d.contact.Outage(); !lost.Since.IsZero() {
			st.APIServer.Lost, st.APIServer.Cause = lost.Since, lost.Resource+": "+lost.Cause
			st.APIServer.Fix = lost.Fix
		}
	}
	st.Config = d.from.file
	st.BootFile = d.boot.told()
	st.onClock()
	return st
}

// clockSet is by how much a clock is off that somebody has set.
const clockSet = time.Second

// onClock tells times as the node's clock has them now: it may have been set
// since, by a year where a node has none that goes on without power, and ages
// are what counts.
func (st *Status) onClock() {
	now := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		then := st.Now.Add(t.Sub(st.Now)) // by the time that passed, as far as both know it
		if off := then.Sub(t.Round(0)).Abs(); off < clockSet {
			return t // clocks drift: one time is told as one
		}
		return then
	}
	st.Started, st.LastSync = now(st.Started), now(st.LastSync)
	if c := st.LastChange; c != nil {
		st.LastChange = &LastChange{now(c.At), c.Kind, c.Operations}
	}
	if e := st.LastError; e != nil {
		st.LastError = &LastError{now(e.At), e.Error}
	}
	if d := st.LastDrift; d != nil {
		last := *d
		last.At = now(d.At)
		st.LastDrift = &last
	}
	if k := st.KubeProxy; k != nil {
		at := *k
		at.Since = now(k.Since)
		st.KubeProxy = &at
	}
	if e := st.Easing; e != nil {
		st.Easing = &Easing{now(e.Since), now(e.Until), e.Kept}
	}
	st.Draining = slices.Clone(st.Draining)
	for i := range st.Draining {
		st.Draining[i].Since = now(st.Draining[i].Since)
	}
	st.Rejected = slices.Clone(st.Rejected)
	for i := range st.Rejected {
		st.Rejected[i].Since, st.Rejected[i].At = now(st.Rejected[i].Since), now(st.Rejected[i].At)
	}
	st.Down = slices.Clone(st.Down)
	for i := range st.Down {
		st.Down[i].Since = now(st.Down[i].Since)
	}
	st.Retrying = slices.Clone(st.Retrying)
	for i := range st.Retrying {
		st.Retrying[i].Since = now(st.Retrying[i].Since)
	}
	if a := st.APIServer; a != nil {
		a.Lost = now(a.Lost)
		for i := range a.Resources {
			r := &a.Resources[i]
			r.Last, r.Lost = now(r.Last), now(r.Lost)
		}
	}
}

// statFile describes a file as it is now.
func statFile(files Files, path string) *File {
	f := &File{Path: path}
	if info, err := files.Stat(path); err == nil {
		f.Modified = info.ModTime()
	}
	return f
}

func serveStatus(w http.ResponseWriter, st Status) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(st) // an error is the client's, who went away
}

// programs returns the Programs in force; nil while nobody knows.
func (s *state) programs() ir.Programs {
	s.mu.Lock()
	inForce := s.inForce
	s.mu.Unlock()
	if inForce == nil {
		return ir.Programs{}
	}
	return inForce()
}

// Well reports whether the kernel holds what is wanted, and nobody else goes on to change
// that; the daemon hears what that is, from the API server or as the newest files
// have it, nothing of it is left out as wrong, and others hear of it what they ask; a next
// start would find it, and kube-proxy has no rules beside it.
func (st *Status) Well() bool {
	return st.NodeWell() && !slices.ContainsFunc(st.Findings, Finding.isError)
}

// NodeWell reports whether all is well but what the authors of objects have to mend.
func (st *Status) NodeWell() bool {
	return st.Synced && !st.LastDrift.fought() &&
		(st.BootFile == nil || st.BootFile.Error+st.BootFile.Refused == "") && st.KubeProxy.beside() == "" && st.APIServer.well() && len(st.Rejected)+len(st.Down)+len(st.Unproved)+st.Proving == 0
}

// well reports whether every resource can be read, optional ones included.
func (a *APIServer) well() bool {
	return a == nil || a.Lost.IsZero() && !slices.ContainsFunc(a.Resources, func(h watch.Heard) bool { return !h.Lost.IsZero() })
}

// UnixPrefix stands before the path of a unix socket in an address.
const UnixPrefix = "unix:"
