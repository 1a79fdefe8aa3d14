// Package history plays random histories against a real `proxyc watch` on a real kernel, with faults of the
// API server, the kernel and the tools, and holds the rules and /readyz against `apply --check`.
package history
