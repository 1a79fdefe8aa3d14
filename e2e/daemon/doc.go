// Package daemon tests the daemon as a process: on a node, and in containers with the rights and system calls of docs/deploy alone.
package daemon
