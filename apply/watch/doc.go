// Package watch keeps a snapshot.Snapshot of a cluster up to date, from an API server or from
// files. Objects are reduced to the fields that the compiler reads as they arrive. Nothing else is
// kept.
package watch
