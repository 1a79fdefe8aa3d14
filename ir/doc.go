// Package ir is the intermediate rule representation of proxyc: what a node does
// with packets to Services, independent of the kernel interface.
//
// One Program covers one IP family. compiler.Compile builds it, the packages
// below render lower it, and ir/sim defines its meaning. The tests compare every
// back end with ir/sim. A Program is in canonical order and is never changed
// after it is built. Every part has an Origin, so that each rule and map element
// can be traced to the object and field that caused it.
//
// The package imports only the standard library and does no I/O.
package ir
