//go:build unix

package apply

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLockNamesItsOwnerAndIsReleased(t *testing.T) {
	dir := t.TempDir()
	first, err := AcquireLock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := AcquireLock(ctx, dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("held by process %d", os.Getpid())) {
		t.Fatalf("second lock: want an error that names the owner, got %v", err)
	}
	got := make(chan error)
	go func() {
		second, err := AcquireLock(t.Context(), dir)
		if err == nil {
			err = second.Release()
		}
		got <- err
	}()
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("waiting for the lock: %v", err)
	}
}
