package trace

import (
	"fmt"
	"slices"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Names returns what the flags --node, --from and --to of a trace, and the argument of an explanation,
// may name in the files of a snapshot; nil without one. Standard input is the shell's terminal.
func Names(in review.Files, files []string) map[string][]string {
	snap := snapshot.New()
	if j := (&review.Input{Snapshot: snap}); len(files) == 0 || slices.Contains(files, review.StandardInput) || !j.ReadSnapshot(in, files, 0) {
		return nil
	}
	var nodes, senders, services, ports []string
	for _, n := range snap.Nodes() {
		nodes, senders = append(nodes, n.Name), append(senders, "node:"+n.Name)
	}
	for _, s := range snap.Services() {
		services = append(services, s.Name.String())
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d", s.Name, p.Port))
		}
		for _, slice := range snap.Slices(s.Name) {
			for _, e := range slice.Endpoints {
				if e.Pod != "" {
					senders = append(senders, "pod:"+slice.Name.Namespace+"/"+e.Pod)
				}
			}
		}
	}
	slices.Sort(senders)
	slices.Sort(ports) // several protocols may have one
	return map[string][]string{"node": nodes, "from": slices.Compact(senders), "to": slices.Compact(ports), "what": services}
}
