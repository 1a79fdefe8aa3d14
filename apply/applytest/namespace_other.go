//go:build !linux

package applytest

import "testing"

// RequireRoot skips the test: there are no network namespaces.
func RequireRoot(t testing.TB) {
	t.Helper()
	t.Skip("needs Linux")
}
