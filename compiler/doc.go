// Package compiler turns a configuration and a snapshot of a cluster into
// Programs: what one node has to do with packets to Services, one Program per
// IP family.
//
// Compile promises: the same input gives the same Programs whatever the order
// in which objects were added, nothing panics, and what is wrong in one object
// is left out and named in a Diagnostic while the rest goes on. The semantics
// are kube-proxy's newest; where kube-proxy leaves a choice to chance, there
// is a fixed rule here, and a Diagnostic.
//
// The work runs in passes, a file each:
//
//	node        the node and its settings                      → ir.Node
//	services    what a Service asks for, judged and parsed      → service
//	bounds      what one Service may ask of a node at most
//	endpoints   its EndpointSlices merged into one list a port  → endpoint
//	topology    which of them a node uses                       → endpointChoice
//	routes      who is sent to which of them                    → ir.Route
//	firewall    source ranges: read, and widened by the VIPs     → ir.SourceRange
//	affinity    session affinity
//	health      healthCheckNodePort
//	windows     what kernelspace mode chooses differently
//	capability  what a Service asks for and the mode lacks
//	balance     whether the client chooses the backend
//	conflicts   two Services that claim one address and port
//	slots       whose Maglev tables a node has room for
//	canon       canonical order
//
// services and endpoints do not depend on the node: CompileNodes does them
// once for all nodes. All passes but conflicts and slots look at one Service alone, so
// that a Compiler can redo just the Services that changed.
package compiler
