package run

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	out, err := Run(t.Context(), strings.NewReader("in"), "cat")
	if err != nil || string(out) != "in" {
		t.Errorf("cat: got %q, %v", out, err)
	}
}

func TestErrors(t *testing.T) {
	_, err := Run(t.Context(), nil, "sh", "-c", "echo no such table >&2; exit 3")
	failed, ok := errors.AsType[*Error](err)
	if !ok || failed.Code != 3 || err.Error() != "sh -c echo no such table >&2; exit 3: no such table" {
		t.Errorf("exit 3: got %v", err)
	}
	if _, err := Run(t.Context(), nil, "no-such-program"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("no program: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, nil, "sleep", "60"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// Run does not wait for a child that keeps the pipes of a killed program.
func TestHanging(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	script := "sleep 1000 & echo $!; wait"
	out, err := Run(ctx, strings.NewReader(strings.Repeat("x", 1<<20)), "sh", "-c", script)
	if err == nil {
		t.Error("no error")
	}
	exec.Command("kill", strings.TrimSpace(string(out))).Run()
	if _, err := Run(WithEnv(t.Context(), "A=b"), nil, "sh", "-c", "test $A = b && test -n \"$PATH\""); err != nil {
		t.Errorf("with a variable: %v", err)
	}
}
