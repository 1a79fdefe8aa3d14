// Package redact replaces names of people and places in a cluster's objects and
// in a configuration by stand-ins. It replaces names of namespaces, Services,
// EndpointSlices, Nodes, pods, zones, ports, interfaces and networks, labels, addresses,
// and all other free text.
// The compiler's result for the stand-ins equals that for the originals, except
// for the names. Stand-ins are equal and ordered like the originals. An address
// in a range has a stand-in in the stand-in of the range.
//
// A stand-in reveals nothing else about its original. It is derived from the
// order of the names, and from the bits in which addresses differ. The same
// objects therefore always yield the same stand-ins without a secret, and no
// original can be found by guessing.
package redact
