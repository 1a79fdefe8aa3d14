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

// A command waits once for a daemon that hangs, however often it asks.
func TestSocketOfHangingDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan net.Conn, 9)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			asked <- conn
		}
	}()
	review.FetchDaemon(t.Context(), socket)
	if _, _, err := review.Live(socket); err == nil || !strings.Contains(err.Error(), "the daemon does not answer within 3s, so it is stopped or hangs") || len(asked) != 1 {
		t.Errorf("%d requests, the last one with %v", len(asked), err)
	}
}
