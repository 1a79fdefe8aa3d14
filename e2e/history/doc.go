// Package history plays random histories with a real `proxyc watch` on a real kernel, with faults
// of the API server, the kernel and the tools. It compares the rules and /readyz with `apply
// --check`.
package history
