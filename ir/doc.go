// Package ir is the intermediate rule representation of proxyc: what a node
// has to do with packets to Services, before any thought of how a kernel is
// told so.
//
// One Program holds one IP family. It is built by compiler.Compile, lowered by
// the packages below render, and its meaning is defined by ir/sim: every back
// end is held against that. A Program is in canonical order and is never
// changed after it is built. Every piece carries an Origin, so that each rule
// and map element can be traced to the object and field that caused it.
//
// The package imports the standard library only, and does no I/O.
package ir
