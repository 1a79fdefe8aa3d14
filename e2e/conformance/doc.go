// Package conformance plays the cases of testdata/conformance once more, with a
// real API server between the objects and the proxy.
package conformance
