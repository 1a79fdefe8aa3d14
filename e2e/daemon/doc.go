// Package daemon tests the daemon in containers: with the rights and system calls of docs/deploy alone.
package daemon
