// Package redact replaces what tells of people and places in a cluster's objects and in a
// configuration by stand-ins: names of namespaces, Services, EndpointSlices, Nodes, pods,
// zones and ports, values of labels, and addresses. The compiler makes of them what it
// makes of the originals, but for these names: stand-ins are equal where the originals
// are, and stand in the same order; an address lies in the stand-in of a range where the
// original lies in the range.
//
// A stand-in tells nothing of its original but that: it is made of the order of names, and
// of where addresses differ. So the same objects always give the same stand-ins, without
// a secret, and nobody can find an original by trying.
package redact
