package migrate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/lint"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Upgrade is what to do before kube-proxy of another release starts.
type Upgrade struct {
	Release       config.Release `json:"toRelease"`
	Configuration []Task         `json:"configuration"`
	Nodes         []Task         `json:"nodes"`
	Services      []Task         `json:"services"`
}

// Task is a finding, and the command that starts its fix; "" for none.
type Task struct {
	Finding string `json:"finding"`
	Command string `json:"command,omitempty"`
}

// ends are the findings about what a release of kube-proxy ends or changes.
var ends = []diag.Code{diag.ModeIPVS, diag.ModeUnset, diag.ExternalIPsEnd, diag.PreferClose, diag.KernelOld, diag.LocalhostNodePorts}

// skew is how many minor releases a kubelet may be older or newer than kube-proxy.
const skew = 3

// shownUnknown is the maximum number of named Nodes whose versions are not known.
const shownUnknown = 5

// NewUpgrade returns the Upgrade of an input to a release, whose configuration is is, and about which
// found reports. The command of mode ipvs has the arguments in.
func NewUpgrade(was *review.Input, is *config.Resolved, found diag.List, release config.Release, in string) *Upgrade {
	u := &Upgrade{Release: release, Configuration: []Task{}, Nodes: []Task{}, Services: []Task{}}
	for _, d := range found {
		if d.Severity <= diag.Warning {
			u.add(d, in)
		}
	}
	for _, d := range config.Differences(was.Resolved, is) {
		u.Configuration = append(u.Configuration, Task{Finding: fmt.Sprintf("%s: %s becomes %s (%s)", d.Path, d.Before.Value, d.After.Value, d.After.Source)})
	}
	was.Lint()
	was.Locate(was.Diags)
	for _, d := range was.Diags.Sorted() {
		if slices.Contains(ends, d.Code) {
			u.add(d, in)
		}
	}
	var unknown []string
	for _, n := range was.Snapshot.Nodes() {
		object := "Node " + n.Name
		written := was.Reader.Written()[object]
		if written.Kubelet == "" || written.Kernel == "" {
			unknown = append(unknown, n.Name)
		}
		if kubelet := written.Kubelet; tooFar(kubelet, release) {
			u.Nodes = append(u.Nodes, Task{fmt.Sprintf("%s: kubelet %s: must be at most %d minor releases from kube-proxy %s", object, kubelet, skew, release),
				"kubectl drain " + review.ShellWord(n.Name) + " --ignore-daemonsets"})
		}
	}
	if len(unknown) > 0 || len(was.Snapshot.Nodes()) == 0 {
		u.Nodes = append(u.Nodes, Task{"versions of kubelet and kernel are not known: the input has no status.nodeInfo of " + cmp.Or(review.FirstOf(unknown, shownUnknown), "any Node") + "; add this output", "kubectl get nodes -o yaml"})
	}
	return u
}

// tooFar reports whether a kubelet's version, such as v1.34.2, may not run beside kube-proxy of a release.
func tooFar(kubelet string, release config.Release) bool {
	parts := strings.SplitN(strings.TrimPrefix(kubelet, "v1."), ".", 2)
	minor, err := strconv.Atoi(parts[0])
	return err == nil && (minor < int(release)-skew || minor > int(release)+skew)
}

// add adds a finding and its command to the list of its object.
func (u *Upgrade) add(d diag.Diagnostic, in string) {
	kind, name := snapshot.ParseObject(d.Object)
	patch := func(change string) string {
		return fmt.Sprintf("kubectl -n %s patch service %s --type=json -p '[%s]'", name.Namespace, name.Name, change)
	}
	task, list := Task{Finding: lint.Line(d)}, &u.Configuration
	switch d.Code {
	case diag.ExternalIPsEnd:
		task.Command = patch(`{"op": "remove", "path": "/spec/externalIPs"}`)
	case diag.PreferClose:
		task.Command = patch(`{"op": "replace", "path": "/spec/trafficDistribution", "value": "PreferSameZone"}`)
	case diag.KernelOld:
		task.Command = "kubectl drain " + review.ShellWord(strings.TrimPrefix(d.Object, "Node ")) + " --ignore-daemonsets"
	case diag.ModeIPVS:
		task.Command = "proxyc migrate " + in + " --to nftables"
	default:
		task.Command = "kubectl -n kube-system edit configmap kube-proxy"
	}
	switch kind {
	case "Service":
		list = &u.Services
	case "Node":
		list = &u.Nodes
	}
	*list = append(*list, task)
}

// Empty reports whether there is nothing to do.
func (u *Upgrade) Empty() bool { return len(u.Configuration)+len(u.Nodes)+len(u.Services) == 0 }

// WriteText writes the tasks.
func (u *Upgrade) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "before the upgrade to kube-proxy %s\n", u.Release)
	for _, list := range []struct {
		title string
		tasks []Task
	}{{"Configuration", u.Configuration}, {"Nodes", u.Nodes}, {"Services", u.Services}} {
		fmt.Fprintf(w, "\n%s\n\n", list.title)
		if len(list.tasks) == 0 {
			fmt.Fprintln(w, "- nothing")
		}
		for _, t := range list.tasks {
			fmt.Fprintf(w, "- %s\n", t.Finding)
			if t.Command != "" {
				fmt.Fprintf(w, "      %s\n", t.Command)
			}
		}
	}
	return nil
}

// WriteJSON writes a document of kind Upgrade.
func (u *Upgrade) WriteJSON(w io.Writer) error { return review.WriteDocument(w, "Upgrade", "  ", u) }

// Source returns the snapshot files of commands, and the command that writes them if the cluster was read
// from its API server.
func Source(online bool, files []string, kubeconfig, name string) (snapshot []string, take string) {
	if !online {
		return files, ""
	}
	take = "proxyc snapshot -o cluster.json"
	if kubeconfig != "" {
		take += " --kubeconfig " + review.ShellWord(kubeconfig)
	}
	if name != "" {
		take += " --context " + review.ShellWord(name)
	}
	return []string{"cluster.json"}, take
}

// Arguments returns the arguments of commands that read a configuration ("" if none was given) and a
// snapshot.
func Arguments(config string, files []string, online bool) string {
	in := "-c " + review.ShellWord(cmp.Or(config, "config.yaml"))
	snapshot, _ := Source(online, files, "", "")
	for _, name := range snapshot {
		in += " -s " + review.ShellWord(name)
	}
	return in
}
