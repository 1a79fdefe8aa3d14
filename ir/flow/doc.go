// Package flow tells people which flows differ between two Programs of a node: by
// Service, by what clients connect to, and by kind of client, with the pieces of
// both Programs that decide.
//
// What differs is found by ir/prove, for every packet; this package puts its classes
// together again and names them. So where it names nothing, every first packet meets
// the same fate. Origins are no part of what is compared.
package flow
