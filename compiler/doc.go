// Package compiler compiles a configuration and a snapshot of a cluster into
// Programs. A Program describes what one node does with packets to Services, in
// one IP family.
//
// Compile has these properties:
//
//   - The same input yields the same Programs, in whatever order the objects were
//     added.
//   - No input causes a panic.
//   - An invalid part of an object is ignored and named in a Diagnostic. The rest
//     is compiled.
//   - The semantics are those of the newest kube-proxy. Where kube-proxy chooses
//     at random, a fixed rule decides, and a Diagnostic reports it.
//
// The work is done in passes, each in its own file:
//
//	node        the node and its settings                       → ir.Node
//	services    validation and parsing of Services              → service
//	bounds      limits of one Service on a node
//	endpoints   EndpointSlices, merged into one list per port   → endpoint
//	topology    the endpoints that a node uses                  → endpointChoice
//	routes      the pool for each source                        → ir.Route
//	firewall    source ranges, extended by the VIPs             → ir.SourceRange
//	affinity    session affinity
//	health      healthCheckNodePort
//	windows     endpoint selection of mode kernelspace
//	capability  fields that the mode does not support
//	balance     backend selection by client (Maglev)
//	conflicts   Services that claim the same address and port
//	slots       Maglev tables that fit on a node
//	canon       canonical order
//
// The passes services and endpoints do not depend on the node, so CompileNodes
// runs them once for all nodes. All passes except conflicts and slots process one
// Service alone, so that a Compiler can recompile only changed Services.
package compiler
