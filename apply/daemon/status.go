package daemon

import (
	"fmt"
	"slices"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// StatusPath is where the metrics server tells the daemon's status.
const StatusPath = "/proxyc/status"

// IRPath is where the status socket tells the IR in force, as JSON.
const IRPath = "/proxyc/ir"

// KnownPath is where the status socket tells what the IR is made of: Known, as JSON.
const KnownPath = "/proxyc/known"

// Status is what a daemon is doing. Its parts are promoted: all fields are on one level in JSON.
type Status struct {
	Process
	Syncs
	Inputs
	Faults
	Foreign
	// Reason is why /readyz is not 200; "": it is.
	Reason   string `json:"reason,omitempty"`
	BootFile *File  `json:"bootFile,omitempty"` // --boot-from
	// Draining are the backends that serve the connections that they have, and
	// get no new ones, where the kernel has to be asked about these (mode ipvs).
	Draining []apply.Drain `json:"draining,omitempty"`
	// Unproved are Services whose rules are not shown to do what is wanted (--prove).
	Unproved []Unproved `json:"unproved,omitempty"`
	// Proving is the number of Services that changed and are not proved yet.
	Proving int `json:"proving,omitempty"`
	// Findings are the first of what is wrong or doubtful in objects, of FindingsTotal.
	Findings      []Finding `json:"findings,omitempty"`
	FindingsTotal int       `json:"findingsTotal,omitempty"`
}

// Process is the part of a Status that stays the same under one configuration, Now excepted.
type Process struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Node    string    `json:"node"`
	Mode    ir.Mode   `json:"mode"`
	// InsteadOf is the mode that the configuration names, where another was taken, and why.
	InsteadOf       ir.Mode `json:"insteadOf,omitempty"`
	InsteadOfReason string  `json:"insteadOfReason,omitempty"`
}

// Syncs is the part of a Status about the rules of this process in the kernel.
type Syncs struct {
	// Synced reports whether the kernel holds what is wanted: nothing waits, and the last sync succeeded.
	Synced bool `json:"synced"`
	// Held is whose rules are kept in force while there are no objects to go by: "the boot
	// file boot.json"; "": there are objects, or no such rules.
	Held string `json:"held,omitempty"`
	// Generation counts the syncs that succeeded.
	Generation int       `json:"generation"`
	LastSync   time.Time `json:"lastSync,omitzero"`
	LastKind   string    `json:"lastKind,omitempty"`
	// Operations are those of the last sync.
	Operations  apply.Count `json:"operations"`
	Quarantined []Refused   `json:"quarantined,omitempty"`
	// LastChange is the last sync that changed something; LastSync may have come after it.
	LastChange *LastChange `json:"lastChange,omitempty"`
	LastError  *LastError  `json:"lastError,omitempty"` // stays after it is overcome
}

// Inputs is the part of a Status about what the rules are made from.
type Inputs struct {
	Pending int     `json:"pending"` // Services whose changes no sync has taken yet
	Objects Objects `json:"objects"`
	// APIServer is nil where the source are files.
	APIServer *APIServer `json:"apiServer,omitempty"`
	Config    *File      `json:"config,omitempty"`   // --config, as it is in force
	Snapshot  []*File    `json:"snapshot,omitempty"` // each --snapshot, as it is in force; none while nothing of it is
	Broken    []Broken   `json:"broken,omitempty"`
}

// Faults is the part of a Status about what failed beside the rules.
type Faults struct {
	// Rejected are files whose newest version was refused: what was in force before stays.
	Rejected []Rejected `json:"rejected,omitempty"`
	// Retrying is what follows the rules, failed and is tried again.
	Retrying []Retry `json:"retrying,omitempty"`
	// Down are servers, and healthCheckNodePorts, that do not serve: another program
	// holds the address, most often.
	Down []Down `json:"down,omitempty"`
}

// Foreign is the part of a Status about rules of other programs, and of an earlier mode.
type Foreign struct {
	LastDrift *LastDrift `json:"lastDrift,omitempty"`
	// KubeProxy is what there was last of kube-proxy's rules; nil: nothing.
	KubeProxy *KubeProxy `json:"kubeProxy,omitempty"`
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

// status collects the Status from the parts of a session.
type status struct {
	process Process
	now     func() time.Time
	parts   []func(*Status) // each adds what it has; in this order
}

// get asks all parts. A reader relies on all that a sync did once a Status has that sync.
// So a part that learns of a sync earlier is asked later.
func (s *status) get() Status {
	st := Status{Process: s.process}
	for _, part := range s.parts {
		part(&st)
	}
	st.Now = s.now()
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
