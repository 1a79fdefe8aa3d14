// Package status is the documents in which a daemon reports its state: as JSON, and as text.
package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// UnixPrefix precedes the path of a unix socket in an address.
const UnixPrefix = "unix:"

// StatusPath is the path of the status on the metrics server.
const StatusPath = "/proxyc/status"

// IRPath is the path of the applied IR, as JSON, on the status socket.
const IRPath = "/proxyc/ir"

// KnownPath is the path of the compiler's input (Known), as JSON, on the status socket.
const KnownPath = "/proxyc/known"

// Status is the state of a daemon. Its parts are embedded, so all fields are on one level in JSON.
type Status struct {
	Process
	Syncs
	Inputs
	Faults
	Foreign
	// Reason is why /readyz is not 200; "" if it is.
	Reason   string `json:"reason,omitempty"`
	BootFile *File  `json:"bootFile,omitempty"` // --boot-from
	// Draining are the backends that serve only existing connections, if the kernel tracks them (mode
	// ipvs).
	Draining []apply.Drain `json:"draining,omitempty"`
	// Findings are the first errors and warnings about objects, of FindingsTotal.
	Findings      []Finding `json:"findings,omitempty"`
	FindingsTotal int       `json:"findingsTotal,omitempty"`
	// Refusing are the service ports that refused or dropped the most connections, if the rules count them.
	Refusing []*ServiceTraffic `json:"refusing,omitempty"`
}

// Process is the part of a Status that is constant for a configuration, except Now.
type Process struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Node    string    `json:"node"`
	Mode    ir.Mode   `json:"mode"`
	// InsteadOf is the configured mode if another one replaced it, with the reason.
	InsteadOf       ir.Mode `json:"insteadOf,omitempty"`
	InsteadOfReason string  `json:"insteadOfReason,omitempty"`
}

// Syncs is the part of a Status about the rules of this process in the kernel.
type Syncs struct {
	// Synced reports whether the kernel matches the desired rules: no change is pending, and the last
	// sync succeeded.
	Synced bool `json:"synced"`
	// Restored is the source of rules that are kept while there are no objects: "the boot file
	// boot.json"; "" if there are objects, or no such rules.
	Restored string `json:"restored,omitempty"`
	// RestoredOf is when the boot file was saved; zero if Restored is not the boot file.
	RestoredOf time.Time `json:"restoredOf,omitzero"`
	// Generation counts successful syncs.
	Generation int       `json:"generation"`
	LastSync   time.Time `json:"lastSync,omitzero"`
	LastKind   string    `json:"lastKind,omitempty"`
	// Operations are those of the last sync.
	Operations apply.Count `json:"operations"`
	// Refused are the Services whose rules, and the objects whose removal, the kernel refuses.
	Refused []Problem `json:"refused,omitempty"`
	// LastChange is the last sync with operations; LastSync may be later.
	LastChange *LastChange `json:"lastChange,omitempty"`
	LastError  *LastError  `json:"lastError,omitempty"` // stays after a success
}

// Inputs is the part of a Status about the input of the rules.
type Inputs struct {
	Pending int     `json:"pending"` // changes that wait for a sync: Services, and the node
	Objects Objects `json:"objects"`
	// APIServer is nil if the source is files.
	APIServer *APIServer `json:"apiServer,omitempty"`
	Config    *File      `json:"config,omitempty"`   // --config, current version
	Snapshot  []*File    `json:"snapshot,omitempty"` // each --snapshot, current version; empty if none was read
	// Invalid are the objects of files whose newest version is ignored.
	Invalid []Problem `json:"invalid,omitempty"`
}

// Faults is the part of a Status about failures besides the rules.
type Faults struct {
	// InvalidFiles are files whose newest version is invalid; the previous one is kept.
	InvalidFiles []InvalidFile `json:"invalidFiles,omitempty"`
	// Retrying is failed work after a sync that is retried.
	Retrying []Retry `json:"retrying,omitempty"`
	// Down are servers and healthCheckNodePorts that do not serve, usually because another program
	// uses the address.
	Down []Down `json:"down,omitempty"`
}

// Foreign is the part of a Status about rules of other programs, and of an earlier mode.
type Foreign struct {
	LastDrift *LastDrift `json:"lastDrift,omitempty"`
	// KubeProxy is the last state of kube-proxy's rules; nil if there were none.
	KubeProxy *KubeProxy `json:"kubeProxy,omitempty"`
	// Easing is leftovers of an earlier mode that connections use; nil without any.
	Easing *Easing `json:"easing,omitempty"`
	// MayDrop and MayDivert are foreign rules that may drop packets to Services, or divert them from
	// our rules.
	MayDrop   []string `json:"mayDrop,omitempty"`
	MayDivert []string `json:"mayDivert,omitempty"`
	// Settings are kernel settings with which pods are not reachable, or listeners on localhost are.
	Settings []string `json:"settings,omitempty"`
}

// Objects counts the known objects.
type Objects struct {
	Services       int `json:"services"`
	EndpointSlices int `json:"endpointSlices"`
	Nodes          int `json:"nodes"`
}

// APIServer is the contact with an API server.
type APIServer struct {
	Server string `json:"server"`
	// Lost is when contact was lost; zero if there is contact.
	Lost      time.Time             `json:"lost,omitzero"`
	Cause     string                `json:"cause,omitempty"` // "services: connection refused"
	Fix       string                `json:"fix,omitempty"`   // fix of Cause, if known
	Resources []watch.ResourceState `json:"resources"`
}

type File struct {
	Path     string    `json:"path"`
	Modified time.Time `json:"modified,omitzero"` // zero if the file does not exist
	Error    string    `json:"error,omitempty"`   // why it could not be written
	Invalid  string    `json:"invalid,omitempty"` // of the boot file: why it was not used at the start
}

type InvalidFile struct {
	Path   string    `json:"path"`
	Since  time.Time `json:"since"` // first invalid version after an accepted one
	At     time.Time `json:"at"`    // of the newest version
	Reason string    `json:"reason"`
	// Retried is set if the cause may be temporary: the version is tried again, and /readyz is 503.
	Retried bool `json:"retried,omitempty"`
}

type Retry struct {
	What  string    `json:"what"` // "stale IPv4 flows"
	Since time.Time `json:"since"`
	Error string    `json:"error"` // of the last attempt
}

// Down is a server that does not serve.
type Down struct {
	Server  string    `json:"server"` // "healthz server"
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason"`
}

// Problem is an object that is not in force, with the reason.
type Problem struct {
	Object string `json:"object"` // "Service ns/web"
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

// KubeProxyState is what becomes of kube-proxy's rules.
type KubeProxyState string

const (
	// Maintained rules belong to a kube-proxy that runs.
	Maintained KubeProxyState = "maintained"
	// LeftOver rules have no owner. The daemon removes them.
	LeftOver KubeProxyState = "left over"
	// Removed rules were left over.
	Removed KubeProxyState = "removed"
)

// KubeProxy is the state of kube-proxy's rules since the daemon started.
type KubeProxy struct {
	State   KubeProxyState `json:"state"`
	Since   time.Time      `json:"since"`
	Objects []string       `json:"objects"`           // "table ip kube-proxy"
	Process string         `json:"process,omitempty"` // of Maintained rules, if visible: "process 4711"
}

// Easing is a change of modes that waits for old connections. Leftovers of the earlier mode are
// removed when they end.
type Easing struct {
	Since time.Time `json:"since"` // when this daemon started it
	Until time.Time `json:"until"` // deadline, at which remaining connections end
	Kept  []Kept    `json:"kept"`
}

// Finding is a finding in a Status.
type Finding struct {
	Severity string `json:"severity"`
	Object   string `json:"object"`
	Field    string `json:"field,omitempty"`
	Message  string `json:"message"`
}

func (f Finding) isError() bool { return f.Severity == diag.Error.String() }

// Text returns the finding in the format of other commands.
func (f Finding) Text() string {
	return diag.Diagnostic{Object: f.Object, Path: f.Field, Msg: f.Message}.String()
}

// Kept is a leftover that connections use.
type Kept struct {
	Object      string `json:"object"`
	Connections int    `json:"connections"`
}

// contestedRepairs is the number of repairs in a minute above which another program is considered
// to change the rules continuously.
const contestedRepairs = 3

// LastDrift describes the last foreign change, and how often there were any.
type LastDrift struct {
	At         time.Time   `json:"at"`
	Operations apply.Count `json:"operations"`
	// Gone are objects that were missing completely: "table ip proxyc". First does not contain the
	// operations that restored their content.
	Gone []string `json:"gone,omitempty"`
	// First are the first repairs, with the values found. More is the number of further ones.
	First []apply.Operation `json:"first"`
	More  int               `json:"more,omitempty"`
	// By are the programs that made the change, if the kernel reports them: "nft (process 4711)".
	By []string `json:"by,omitempty"`
	// Recent is the number of repairs in the last minute.
	Recent int `json:"lately,omitempty"`
}

// Known is a daemon's input: another proxyc of the same version can compile the same Programs from
// it.
type Known struct {
	Config   *config.Config     `json:"config"`
	Facts    compiler.Facts     `json:"facts"`
	Snapshot *snapshot.Document `json:"snapshot"`
	// Findings contains all errors and warnings, in the format of a Status.
	Findings []Finding `json:"findings,omitempty"`
}

// Healthy reports whether everything is in order:
//
//   - The kernel matches the desired rules, and no other program changes them continuously.
//   - The input is current, from the API server or the newest files, and no object has errors.
//   - No server fails.
//   - The boot file is current, and kube-proxy has no rules.
func (st *Status) Healthy() bool {
	return st.NodeHealthy() && len(st.Invalid) == 0 && !slices.ContainsFunc(st.Findings, Finding.isError)
}

// NodeHealthy is Healthy without errors in objects, which their authors have to fix.
func (st *Status) NodeHealthy() bool {
	return st.Synced && !st.LastDrift.contested() &&
		(st.BootFile == nil || st.BootFile.Error+st.BootFile.Invalid == "") && st.KubeProxy.Warning() == "" && st.APIServer.healthy() && len(st.InvalidFiles)+len(st.Down)+len(st.Refused) == 0
}

// About returns why the newest version of a Service is not in force; nothing if it is.
func (st *Status) About(service ir.Name) (reasons []string) {
	object := "Service " + service.String()
	for _, p := range st.Refused {
		if p.Object == object {
			reasons = append(reasons, object+" is refused by the kernel, so its packets are not proxied: "+p.Reason)
		}
	}
	for _, p := range st.Invalid {
		if p.Object == object {
			reasons = append(reasons, "the newest version of "+object+" is not in force: "+p.Reason)
		}
	}
	return reasons
}

// Doubts returns why the rules in force may not be those of the cluster; nothing for the zero Status.
func (st *Status) Doubts() (doubts []string) {
	if api := st.APIServer; api != nil && !api.Lost.IsZero() {
		doubts = append(doubts, fmt.Sprintf("cut off from the API server for %s, so objects may be outdated: %s", age(st.Now, api.Lost), api.Cause))
	}
	if st.PID != 0 && !st.Synced {
		doubts = append(doubts, "the rules are not in sync: "+st.Reason)
	}
	return append(doubts, st.Settings...)
}

// healthy reports whether every resource can be read, including optional ones.
func (a *APIServer) healthy() bool {
	return a == nil || a.Lost.IsZero() && !slices.ContainsFunc(a.Resources, func(h watch.ResourceState) bool { return !h.Lost.IsZero() })
}

// contested reports whether another program changes the rules continuously.
func (d *LastDrift) contested() bool { return d != nil && d.Recent >= contestedRepairs }

// Warning returns why packets may match kube-proxy's rules; "" if there are none.
func (k *KubeProxy) Warning() string {
	if k == nil || k.State == Removed {
		return ""
	}
	return k.Text() + " (" + strings.Join(k.Objects, ", ") + ")"
}
