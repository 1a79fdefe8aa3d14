//go:build !linux

package applytest

import "testing"

// RequireRoot skips the test: this system has no network namespaces.
func RequireRoot(t testing.TB) {
	t.Helper()
	t.Skip("needs Linux")
}
