package review_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

// A socket that a killed daemon left is named as that, without the error of the connection.
func TestSocketOfKilledDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := review.FetchStatus(t.Context(), socket); err == nil || !strings.HasSuffix(err.Error(), "no daemon listens: one that was killed left the socket") || strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}
