// Package conn exchanges messages with nf_tables over netlink. A Conn sends batches, which the
// kernel commits as a whole or refuses with the index of each message that it refuses, and
// lists objects.
//
// The package is independent of plans: the caller maps the index of a refusal to its purpose.
package conn
