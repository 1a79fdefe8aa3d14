// Package watch keeps a Snapshot of a cluster up to date: from an API server,
// or from files. Objects are reduced to what the compiler reads as they
// arrive, and nothing else of them is kept.
package watch
