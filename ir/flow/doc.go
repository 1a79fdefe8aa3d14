// Package flow describes the flows that differ between two Programs of a node: by
// Service, destination and kind of client, with the parts of both Programs that
// decide.
//
// Package ir/prove finds the differences for every packet; this package merges
// and names its classes. If it reports nothing, every first packet has the same
// outcome. Origins are not compared.
package flow
